"""Public kernels changed by somebody who knew kperf's findings and not what their authors changed: what that gains."""

import statistics
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from kperf.console import agreeing
from kperf.record import markdown as md
from kperf.studies.public_rows import (
    FASTER,
    PublicRow,
    came_of,
    gain,
    in_order,
    is_faster,
    named_kernel,
    recorded,
    stamped,
)

MOST_OF = 0.9
"""Of an author's speedup: a change that reaches so much of it gains as much."""

HEAD = (
    "kernel", "rule whose advice the change follows", "change", "gain of this change", "gain of the author's change",
    "outputs before and after",
)  # fmt: skip


def table(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a change, the largest gain first; `rows`: with those of the authors' changes, as far as they are shown."""
    made = Table(*HEAD, title=f"public kernels changed as kperf advises; {stamp}", title_justify="left")
    for row in in_order([row for row in rows if row.follows]):
        made.add_row(*cells(row, _of_author(rows, row)))
    return made


def markdown(folder: Path, collection: int) -> str | None:
    """The section of docs/sped_up.md for a collection of kernels; None if no such change is recorded, or no author's.

    A kernel that nobody could change by its findings counts as one whose speed stays.
    """
    shown = recorded(folder)
    of_collection = [row for row in shown.rows if row.collection == collection]
    rows = in_order([row for row in of_collection if row.follows])
    if not rows:
        return None
    authors = [row for row in of_collection if row.faults]
    if not authors:
        return None
    gained = [row for row in authors if is_faster(row)]
    ours = best(of_collection)
    by_findings, by_authors = means(of_collection)
    by_first = mean_of_first(of_collection)
    as_fast = sum(ours[row.name] >= MOST_OF * _speedup(row) for row in gained)
    lines = [
        stamped(shown, rows),
        "",
        f"- {len({row.follows for row in rows})} of the {len(authors)} kernels were changed as their findings advise, "
        f"some in two ways: {len(rows)} changes. {came_of(rows)}",
        f"- The geometric mean of the {len(authors)} kernels' gains is {by_findings:.2f} x by the faster change of "
        f"each kernel, {by_first:.2f} x by the first change of each kernel, and {by_authors:.2f} x by the authors' "
        "changes. In these means a kernel counts as 1 x if nothing was changed, if the change makes it slower, or if "
        "the change changes its outputs.",
        f"- Their authors made {len(gained)} kernels at least {FASTER - 1:.0%} faster. {as_fast} of these "
        f"{len(gained)} kernels {agreeing(as_fast, 'becomes', 'become')} at least {MOST_OF:.0%} as fast by kperf's "
        "advice as by the author's change.",
        "",
        *md.table(HEAD, (cells(row, _of_author(of_collection, row)) for row in rows)),
    ]
    return "\n".join(lines)


def best(rows: Sequence[PublicRow]) -> dict[str, float]:
    """Of each kernel that its authors changed, what the best change by findings gains; 1 without one."""
    gains = {row.name: 1.0 for row in rows if row.faults}
    for row in rows:
        if row.follows in gains:
            gains[row.follows] = max(gains[row.follows], _speedup(row))
    return gains


def means(rows: Sequence[PublicRow]) -> tuple[float, float]:
    """The geometric means of what findings and of what authors gain, over the kernels that authors changed."""
    authors = [_speedup(row) for row in rows if row.faults]
    return statistics.geometric_mean(best(rows).values()), statistics.geometric_mean(authors)


def mean_of_first(rows: Sequence[PublicRow]) -> float:
    """The geometric mean of what the first change of each kernel gains: they are named kernel:1, kernel:2."""
    return means([row for row in rows if row.faults or row.name.endswith(":1")])[0]


def cells(row: PublicRow, author: PublicRow | None) -> tuple[str, ...]:
    """Of a row of the table."""
    return (
        named_kernel(row),
        row.rule,
        row.change,
        gain(row),
        gain(author).partition(" (")[0] if author is not None else "not shown",
        row.outputs,
    )


def _of_author(rows: Sequence[PublicRow], row: PublicRow) -> PublicRow | None:
    return next((one for one in rows if one.name == row.follows), None)


def _speedup(row: PublicRow) -> float:
    """What a change gains: nothing if it loses, or if its outputs are others."""
    return max(statistics.median(row.ratios), 1.0) if row.outputs != "different" else 1.0
