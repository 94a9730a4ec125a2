"""Tables of Markdown, as GitHub and GitLab show them."""

from collections.abc import Iterable, Sequence

_INSIDE = str.maketrans({"|": r"\|", "\n": " "})


def row(cells: Iterable[str]) -> str:
    """The line of a table. A cell may hold what would end it: a bar is escaped, a line's end is a space."""
    return f"| {' | '.join(cell.translate(_INSIDE) for cell in cells)} |"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table."""
    return [row(head), "|---" * len(head) + "|", *map(row, rows)]
