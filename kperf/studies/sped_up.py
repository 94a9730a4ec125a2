"""Public kernels that others made faster: whether findings name why they were slow. The rows are `kperf public`'s."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table

from kperf.console import agreeing
from kperf.diagnose.rule import all_rules
from kperf.record.store import RecordStore
from kperf.studies.public_rows import (
    FASTER,
    ROWS,
    PublicRow,
    came_of,
    gain,
    in_order,
    is_faster,
    named_kernel,
)

NAMED = 2
"""How many findings of a kernel count: a user reads the first ones."""

HEAD = (
    "kernel", "what its author changed", "fault", "rank of the finding that names the fault", "first two findings",
    "input shape", "gain of the author's change", "outputs before and after",
)  # fmt: skip

TOTALS = ("kernels", "faults named", "by chance", f"{FASTER - 1:.0%} faster", "of these, named")
"""Of a collection: what `totals` gives."""


def table(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a kernel, the largest gain first."""
    made = Table(*HEAD, title=f"public kernels that others made faster; {stamp}", title_justify="left")
    for row in in_order(rows):
        made.add_row(*cells(row))
    return made


def counts(folder: Path, number: int, rows: Sequence[PublicRow]) -> list[str]:
    """Sentences on a collection; `rows`: its authors' changes, as they were last measured.

    Findings count twice where kernels were measured more than once: by the first measurement of each, before a rule
    was changed because of it, and by the last one.
    """
    first = first_recorded(folder, number)
    gained = [row for row in rows if is_faster(row)]
    names = {rule.id for rule in all_rules()}
    unruled = sum(names.isdisjoint(row.faults) for row in rows)
    several = sum(len(row.faults) > 1 for row in rows)
    named_at = [_counted(list(first.values()), "When each kernel was first measured, kperf's")]
    if any(first[row.name] != row for row in rows):
        named_at.append(_counted(rows, "When each kernel was last measured, kperf's"))
    return [
        *named_at,
        f"- By chance the first two findings would name the faults of {by_chance(list(first.values())):.1f} kernels: "
        "this is the average if each kernel had the findings of another kernel.",
        f"- {_looked_for(unruled, len(rows))} {several} of the faults "
        f"{agreeing(several, 'counts', 'count')} as named if any of several rules names "
        f"{agreeing(several, 'it', 'them')}.",
        f"- {came_of(rows)}",
        "- When each kernel was first measured, kperf's first or second finding named the faults of "
        f"{named([first[row.name] for row in gained])} of the {len(gained)} kernels that become at least "
        f"{FASTER - 1:.0%} faster.",
    ]


def totals(folder: Path, number: int, rows: Sequence[PublicRow]) -> tuple[str, ...]:
    """A collection as it was first measured, in a row; `rows`: as they were last measured."""
    first = first_recorded(folder, number)
    gained = [first[row.name] for row in rows if row.faults and is_faster(row)]
    chance = by_chance(list(first.values()))
    return str(len(first)), str(named(first.values())), f"{chance:.1f}", str(len(gained)), str(named(gained))


def first_recorded(folder: Path, collection: int) -> dict[str, PublicRow]:
    """By its name, each kernel of a collection as it was first measured."""
    rows = reversed(RecordStore(folder, "public", ROWS).points())
    return {row.name: row for row in rows if row.faults and row.collection == collection}


def _looked_for(unruled: int, faults: int) -> str:
    if not unruled:
        return f"A rule of kperf looks for each of the {faults} faults."
    return f"No rule of kperf looks for {unruled} of the {faults} faults."


def _counted(rows: Sequence[PublicRow], when: str) -> str:
    return f"- {when} first or second finding named the faults of {named(rows)} of {len(rows)} kernels."


def named(rows: Iterable[PublicRow]) -> int:
    """Of how many kernels the first findings name the fault."""
    return sum(row.rank is not None and row.rank <= NAMED for row in rows)


def by_chance(rows: Sequence[PublicRow]) -> float:
    """Of how many kernels another kernel's first findings would name the fault, on average over the other kernels."""
    first = [{one.id for one in row.findings[:NAMED]} for row in rows]
    named_by_others = (
        sum(not names.isdisjoint(row.faults) for place, names in enumerate(first) if place != number)
        for number, row in enumerate(rows)
    )
    return sum(named_by_others) / max(len(rows) - 1, 1)


def cells(row: PublicRow) -> tuple[str, ...]:
    """Of a row of the table."""
    first = ", ".join(f"{one.id} ({one.severity}, line {one.source.line})" for one in row.findings[:NAMED])
    return (
        named_kernel(row),
        row.change,
        " or ".join(row.faults),
        str(row.rank or "-"),
        first or "none",
        row.shape,
        gain(row),
        row.outputs,
    )
