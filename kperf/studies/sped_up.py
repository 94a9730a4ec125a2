"""Public kernels that others made faster: whether findings name why they were slow. The rows are `kperf public`'s."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.table import Table

from kperf.console import agreeing
from kperf.diagnose.rule import all_rules
from kperf.record import markdown as md
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
    recorded,
    stamped,
)

NAMED = 2
"""How many findings of a kernel count: a user reads the first ones."""

HEAD = (
    "kernel", "what its author changed", "fault", "rank of the finding that names the fault", "first two findings",
    "input shape", "gain of the author's change", "outputs before and after",
)  # fmt: skip

_OF_COLLECTIONS = (
    "collection", "kernels, with one fault each", "faults named", "faults named by chance",
    f"kernels that the author's change makes at least {FASTER - 1:.0%} faster", "of these kernels, faults named",
)  # fmt: skip
_IN_WORDS = ("first", "second", "third", "fourth")
"""Numbers of collections, as the headings of docs/sped_up.md have them: a further one needs its word here."""


def table(rows: Sequence[PublicRow], stamp: str) -> Table:
    """A row a kernel, the largest gain first."""
    made = Table(*HEAD, title=f"public kernels that others made faster; {stamp}", title_justify="left")
    for row in in_order(rows):
        made.add_row(*cells(row))
    return made


def markdown(folder: Path, collection: int) -> str | None:
    """The section of docs/sped_up.md for a collection of kernels; None if none of them is recorded.

    It counts twice where kernels were measured more than once: by the first measurement of each, before a rule was
    changed because of it, and by the last one.
    """
    shown = recorded(folder)
    rows = in_order([row for row in shown.rows if row.faults and row.collection == collection])
    if not rows:
        return None
    first = first_recorded(folder, collection)
    gained = [row for row in rows if is_faster(row)]
    names = {rule.id for rule in all_rules()}
    unruled = sum(names.isdisjoint(row.faults) for row in rows)
    several = sum(len(row.faults) > 1 for row in rows)
    counts = [_counted(list(first.values()), "When each kernel was first measured, kperf's")]
    if any(first[row.name] != row for row in rows):
        counts.append(_counted(rows, "When each kernel was last measured, kperf's"))
    lines = [
        stamped(shown, rows),
        "",
        *counts,
        f"- By chance the first two findings would name the faults of {by_chance(list(first.values())):.1f} kernels: "
        "this is the average if each kernel had the findings of another kernel.",
        f"- {_looked_for(unruled, len(rows))} {several} of the faults "
        f"{agreeing(several, 'counts', 'count')} as named if any of several rules names "
        f"{agreeing(several, 'it', 'them')}.",
        f"- {came_of(rows)}",
        "- When each kernel was first measured, kperf's first or second finding named the faults of "
        f"{named([first[row.name] for row in gained])} of the {len(gained)} kernels that become at least "
        f"{FASTER - 1:.0%} faster.",
        "",
        *md.table(HEAD, map(cells, rows)),
    ]
    return "\n".join(lines)


def summary(folder: Path) -> str | None:
    """The table at the top of docs/sped_up.md: a row a collection as it was first measured, the newest first.

    None if none is recorded.
    """
    rows = [row for row in recorded(folder).rows if row.faults]
    collections = sorted({row.collection for row in rows}, reverse=True)
    cells = []
    for number in collections:
        first = first_recorded(folder, number)
        gained = [first[row.name] for row in rows if row.collection == number and is_faster(row)]
        word = _IN_WORDS[number - 1]
        counts = len(first), named(first.values()), f"{by_chance(list(first.values())):.1f}"
        cells.append([f"[{word}](#{word}-collection)", *map(str, counts), str(len(gained)), str(named(gained))])
    return "\n".join(md.table(_OF_COLLECTIONS, cells)) if cells else None


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
