"""Public kernels changed by somebody who knew kperf's findings and not what their authors changed: what that gains."""

import statistics
from collections.abc import Sequence

from rich.table import Table

from kperf.console import agreeing
from kperf.studies.public_rows import (
    FASTER,
    PublicRow,
    came_of,
    gain,
    in_order,
    is_faster,
    is_slower,
    named_kernel,
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


TOTALS = ("kernels changed", "first change", "better change", "author's change", "slower")
"""Of a collection: what `totals` gives."""


def counts(rows: Sequence[PublicRow]) -> list[str]:
    """Sentences on a collection's changes; `rows`: these and its authors'.

    A kernel that nobody could change by its findings counts as one whose speed stays.
    """
    authors, changes = [row for row in rows if row.faults], [row for row in rows if row.follows]
    gained = [row for row in authors if is_faster(row)]
    ours = best(rows)
    by_findings, by_authors = means(rows)
    as_fast = sum(ours[row.name] >= MOST_OF * _speedup(row) for row in gained)
    return [
        f"- {_changed(rows)} of the {len(authors)} kernels were changed as their findings advise, "
        f"some in two ways: {len(changes)} changes. {came_of(changes)}",
        f"- The geometric mean of the {len(authors)} kernels' gains is {by_findings:.2f} x by the faster change of "
        f"each kernel, {mean_of_first(rows):.2f} x by the first change of each kernel, and {by_authors:.2f} x by the "
        "authors' changes. In these means a kernel counts as 1 x if nothing was changed, if the change makes it "
        "slower, or if the change changes its outputs.",
        f"- Their authors made {len(gained)} kernels at least {FASTER - 1:.0%} faster. {as_fast} of these "
        f"{len(gained)} kernels {agreeing(as_fast, 'becomes', 'become')} at least {MOST_OF:.0%} as fast by kperf's "
        "advice as by the author's change.",
    ]


def totals(rows: Sequence[PublicRow]) -> tuple[str, ...]:
    """What following findings gains in a collection, in a row; `rows`: with its authors' changes."""
    by_findings, by_authors = means(rows)
    speedups = [f"{mean:.2f} x" for mean in (mean_of_first(rows), by_findings, by_authors)]
    changes = [row for row in rows if row.follows]
    kernels = f"{_changed(rows)} of {sum(bool(row.faults) for row in rows)}"
    return kernels, *speedups, f"{sum(map(is_slower, changes))} of {len(changes)}"


OF_RULES = ("rule", "changes", "speedup", "10% faster", "slower")
"""Of a rule: its name, and what `of_rules` gives."""
_FEWEST = 3
"""Changes of a rule that are shown: of one or two a mean says little."""
_SLOWER = 0.97
"""At most so many times as fast: what differs less may be chance."""


def of_rules(rows: Sequence[PublicRow]) -> dict[str, tuple[str, ...]]:
    """What changes gain that follow each rule, in a row, the rule whose changes gain most first.

    A change on top of another one (*also:*) by what it adds to that one's speedup. Changes of outputs are left out.
    """
    gains = {row.name: statistics.median(row.ratios) for row in rows if row.follows and row.outputs != "different"}
    of_rule: dict[str, list[float]] = {}
    for row in rows:
        first = f"{row.follows}:1" if row.change.startswith("also") else ""
        if row.name in gains and (not first or first in gains):
            of_rule.setdefault(row.rule, []).append(gains[row.name] / gains.get(first, 1.0))
    means = {rule: statistics.geometric_mean(each) for rule, each in of_rule.items() if len(each) >= _FEWEST}
    return {
        rule: (
            str(len(of_rule[rule])),
            f"{means[rule]:.2f} x",
            str(sum(one >= FASTER for one in of_rule[rule])),
            str(sum(one <= _SLOWER for one in of_rule[rule])),
        )
        for rule in sorted(means, key=lambda one: -means[one])
    }


def _changed(rows: Sequence[PublicRow]) -> int:
    return len({row.follows for row in rows if row.follows})


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
