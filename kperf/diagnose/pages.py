"""The pages of the rules: docs/rules/<id>.md, in a checkout or in the installed package."""

from pathlib import Path

_PLACES = (Path(__file__).resolve().parents[2] / "docs/rules", Path(__file__).resolve().parent / "pages")


def page(rule: str) -> str:
    """The text of a rule's page; one line if it is not installed."""
    for folder in _PLACES:
        path = folder / f"{rule}.md"
        if path.is_file():
            return path.read_text()
    return f"{rule}: its page is docs/rules/{rule}.md of the repository"
