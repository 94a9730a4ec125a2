"""What the documents say, wherever their lines end."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    str(path.relative_to(ROOT)): path.read_text()
    for path in (ROOT / "README.md", ROOT / "artifact.md", *sorted((ROOT / "docs").glob("*.md")))
}
"""Text of each page, by its path from the top of the checkout."""

_SAID = " ".join(" ".join(text.split()) for text in PAGES.values())


def said(sentence: str) -> bool:
    """Whether one of the pages has the sentence."""
    return " ".join(sentence.split()) in _SAID


def between_marks(page: str, name: str) -> str:
    """What stands between a page's marks of that name."""
    return PAGES[page].split(f"<!-- {name} -->")[1].split(f"<!-- /{name} -->")[0].strip()
