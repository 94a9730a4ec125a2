"""Public kernels changed by somebody who knew kperf's findings and not what their authors changed: what that gains."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kperf.record import markdown as md
from kperf.studies.public_rows import FASTER, PublicRow, came_of, gain, in_order, is_faster, recorded, stamped

MOST_OF = 0.9
"""Of an author's speedup: a change that reaches so much of it gains as much."""

HEAD = ("kernel", "finding", "change", "gain", "the author's gain", "outputs")


def table(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a change, the largest gain first; `rows`: with those of the authors' changes."""
    made = Table(*HEAD, title=f"public kernels changed as kperf advises; {stamp}", title_justify="left")
    for row in in_order([row for row in rows if row.follows]):
        made.add_row(*cells(row, _of_author(rows, row)))
    return made


def markdown(folder: Path) -> str | None:
    """The section of docs/public.md; None if no such change is recorded.

    A kernel that nobody could change by its findings counts as one whose speed stays.
    """
    shown = recorded(folder)
    rows = in_order([row for row in shown.rows if row.follows])
    if not rows:
        return None
    authors = [row for row in shown.rows if row.faults]
    gained = [row for row in authors if is_faster(row)]
    ours = {row.name: max([1.0, *(_speedup(one) for one in rows if one.follows == row.name)]) for row in authors}
    mean, means = statistics.geometric_mean(ours.values()), statistics.geometric_mean(map(_speedup, authors))
    as_fast = sum(ours[row.name] >= MOST_OF * _speedup(row) for row in gained)
    lines = [
        stamped(shown, rows),
        "",
        f"- {len({row.follows for row in rows})} of the {len(authors)} kernels were changed by their findings, some in "
        f"two ways: {len(rows)} changes. {came_of(rows)}",
        f"- The geometric mean of the {len(authors)} kernels' gains is {mean:.2f} x, and of their authors' gains "
        f"{means:.2f} x. Here a kernel with two changes has the faster one's gain, and a kernel without a change, or "
        "with changes that lose, counts as 1 x.",
        f"- Of the {len(gained)} kernels that their authors made at least {FASTER - 1:.0%} faster, kperf's findings "
        f"make {as_fast} at least {MOST_OF:.0%} as fast as their authors did.",
        "",
        *md.table(HEAD, (cells(row, _of_author(shown.rows, row)) for row in rows)),
    ]
    return "\n".join(lines)


def cells(row: PublicRow, author: PublicRow) -> tuple[str, ...]:
    """Of a row of the table."""
    return (
        f"`{row.kernel}` ({row.repository}, {row.source})",
        row.rule,
        row.change,
        gain(row),
        gain(author).partition(" (")[0],
        row.outputs,
    )


def _of_author(rows: Sequence[PublicRow], row: PublicRow) -> PublicRow:
    return next(one for one in rows if one.name == row.follows)


def _speedup(row: PublicRow) -> float:
    """What a change gains: nothing if it loses, or if its outputs are others."""
    return max(statistics.median(row.ratios), 1.0) if row.outputs != "different" else 1.0
