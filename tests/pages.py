"""What the documents say, wherever their lines end."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for pattern in ("README.md", "artifact.md", "docs/*.md", "docs/proof/*.md", "docs/sped_up/*.md")
    for path in sorted(ROOT.glob(pattern))
}
"""Text of each page, by its path from the top of the checkout."""

_SAID = " ".join(" ".join(text.split()) for text in PAGES.values())


def said(sentence: str) -> bool:
    """Whether one of the pages has the sentence."""
    return " ".join(sentence.split()) in _SAID


def between_marks(page: str, name: str) -> str:
    """What stands between a page's marks of that name."""
    return PAGES[page].split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()


def all_between_marks(page: str) -> dict[str, str]:
    """What stands between all marks of a page, given without its ending, and of the pages in the folder of its name."""
    text = "\n".join(PAGES[name] for name in PAGES if name == f"{page}.md" or name.startswith(f"{page}/"))
    parts = re.findall(r"<!-- ([\w-]+) -->\n(.*?)\n<!-- /\1 -->", text, flags=re.DOTALL)
    assert len(parts) == len(dict(parts)), "a mark stands twice"
    return dict(parts)
