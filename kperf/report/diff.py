"""`kperf diff`: the facts of two timelines side by side, with what changed, on the terminal or in Markdown."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from kperf.console import printable
from kperf.errors import MeasurementError
from kperf.record.markdown import row
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline

_COLUMNS = ("fact", "before", "after", "change")


@dataclass(frozen=True)
class _Fact:
    """What is read of a timeline, in a format; `share`: it is one, and changes by points. None: not known."""

    name: str
    read: Callable[[Timeline], float | None]
    form: str = "{:,.0f}"
    share: bool = False

    def cells(self, timelines: Sequence[Timeline], *, change: bool) -> list[str]:
        """Its name, its value in each timeline, and if it is wanted what changed from the first to the second."""
        values = [self.read(t) for t in timelines]
        cells = ["-" if value is None else self.form.format(value) for value in values]
        return [self.name, *cells, *([self._change(*values[:2])] if change else [])]

    def _change(self, before: float | None, after: float | None) -> str:
        if before is None or after is None or before == after:
            return ""
        if self.share:
            return f"{100 * (after - before):+.1f} points"
        return f"{after / before - 1:+.1%}" if before else f"{after - before:+g}"


_FACTS = (
    _Fact("time of a launch, ms", lambda t: t.overhead.launch_ms, "{:.4f}"),
    _Fact("cycles of an iteration", lambda t: t.iteration.cycles if t.iteration else None),
    _Fact("cycles of an iteration, with all events", lambda t: t.cycles_per_unit.median if t.iteration else None),
    _Fact("cycles of a CTA", lambda t: None if t.iteration else t.cycles_per_unit.median),
    _Fact("tensor cores of an SM busy", lambda t: t.mma_use.sm if t.mma_use else None, "{:.1%}", share=True),
    _Fact("FMA units of an SM busy", lambda t: t.fma_use.sm if t.fma_use else None, "{:.1%}", share=True),
    _Fact(
        "an MMA in flight, of a CTA's time",
        lambda t: t.mma_use.in_flight_cta if t.mma_use else None,
        "{:.1%}",
        share=True,
    ),
    _Fact("waits for loads, cycles of an iteration", lambda t: t.load_wait.cycles if t.load_wait else None),
    _Fact("SMs without a CTA, of the launch", lambda t: t.sms.idle if t.sms else None, "{:.1%}", share=True),
    _Fact("registers a thread", lambda t: t.resources.original.registers if t.resources else None),
    _Fact("bytes spilled a thread", lambda t: t.resources.original.spilled_bytes if t.resources else None),
    _Fact("bytes of shared memory a CTA", lambda t: t.resources.original.shared_bytes if t.resources else None),
    _Fact("CTAs that fit on an SM", lambda t: t.resources.original.occupancy if t.resources else None),
    _Fact("SM clock, MHz", lambda t: t.clock_mhz),
)


def run(console: Console, before: Path, after: Path, *, markdown: bool, most_slower: float | None) -> None:
    """Print the table. `most_slower`: percent by which a launch may take longer.

    Raises `MeasurementError` if it takes longer than that, `UsageError` if a file is no timeline.
    """
    earlier, later = read_timeline(before), read_timeline(after)
    table_rows = rows([earlier, later], change=True)
    if markdown:
        console.out(as_markdown(table_rows), end="", highlight=False)
    else:
        table = Table(*_COLUMNS, title=f"{before} and {after}", title_justify="left")
        for row in table_rows:
            table.add_row(*map(printable, row))
        console.print(table)
    first, second = earlier.overhead.launch_ms, later.overhead.launch_ms
    if most_slower is not None and second > first * (1 + most_slower / 100):
        raise MeasurementError(
            f"{later.kernel} takes {second:.4f} ms where it took {first:.4f} ms: {second / first - 1:.1%} longer, and "
            f"{most_slower:g} % are allowed"
        )


def rows(timelines: Sequence[Timeline], *, change: bool) -> list[list[str]]:
    """A row a fact that one of them has: its name, and a value a timeline.

    `change`: two are of one kernel, before and after; what changed is a column more, and a row each for its regions.
    """
    about: list[tuple[str, list[str]]] = [
        ("kernel", [t.label for t in timelines]),
        ("file", [t.file for t in timelines]),
        ("GPU", [t.environment.gpu for t in timelines]),
        ("grid", [" x ".join(map(str, t.grid)) for t in timelines]),
        ("confidence", [t.confidence.level for t in timelines]),
        ("findings", [", ".join(finding.id for finding in t.findings) or "-" for t in timelines]),
    ]
    regions = _regions(*timelines) if change else []
    all_rows = [[name, *values, *([""] if change else [])] for name, values in about]
    all_rows += [fact.cells(timelines, change=change) for fact in (*_FACTS, *regions)]
    return [row for row in all_rows if any(cell != "-" for cell in row[1 : 1 + len(timelines)])]


def _regions(before: Timeline, after: Timeline) -> list[_Fact]:
    """Cycles an iteration of each region that has some, in the order of the program, as a warp group spends them."""
    named = dict.fromkeys(
        (region.warp_group, region.name)
        for t in (before, after)
        for region in t.regions
        if region.per_iteration is not None and round(region.per_iteration)
    )
    return [_Fact(f"{group}: {name}, cycles of an iteration", _per_iteration(group, name)) for group, name in named]


def _per_iteration(group: str, name: str) -> Callable[[Timeline], float | None]:
    def read(t: Timeline) -> float | None:
        of_region = [region.per_iteration for region in t.regions if (region.warp_group, region.name) == (group, name)]
        known = [cycles for cycles in of_region if cycles is not None]
        return sum(known) if known else None

    return read


def as_markdown(table_rows: Sequence[Sequence[str]]) -> str:
    """The table as GitHub and GitLab show it in a comment."""
    return "".join(f"{row(cells)}\n" for cells in (_COLUMNS, ("---", "---:", "---:", "---:"), *table_rows))
