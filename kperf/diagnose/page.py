"""The pages of the rules, docs/rules/<id>.md; in the wheel they lie in the package."""

from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "pages"


def page(rule: str) -> str:
    """The text of a rule's page."""
    return (FOLDER / f"{rule}.md").read_text()
