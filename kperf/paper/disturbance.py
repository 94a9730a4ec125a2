"""`make disturbance`: what events cost a launch with all CTAs recorded and with sampled ones, a row a kernel and way.

Every kernel of examples/ is traced both ways, and those of scripts that are given, as of public packages. `kperf trace`
times the original and the instrumented kernel in turn; the samples are kept. The next processes start while one has
the GPU, and wait for it.
"""

import re
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.console import agreeing, titled_table
from kperf.errors import UsageError
from kperf.paper.examples import EXAMPLES, trace_command
from kperf.record import markdown as md
from kperf.record.store import RecordStore
from kperf.studies import child
from kperf.studies.records import Common, Row, measured_or_recorded, stamp
from kperf.trace.analyze.models import KernelResources, Timeline
from kperf.trace.analyze.recorded import read_timeline
from kperf.trace.capture.sampled import UNDISTURBED
from kperf.trace.instrument.session import COUNTER_BYTES

Way = Literal["all", "sampled"]
"""Which CTAs are recorded, as `--ctas` names them."""
GOALS = (0.05, 0.15)
"""Of a launch's time: in the mean over the kernels, and at worst."""
_SMALL = 0.01
"""A launch that events shorten by less is called as long as the original's."""
_WITH_EVENTS: dict[Way, str] = {"all": "events in all CTAs", "sampled": "events in only some CTAs"}
_LIMIT_S = 600

Samples = Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]


class DisturbanceRow(Row):
    """A kernel traced one way: launches of the original and of the instrumented kernel, in turn.

    `original_ms`, `instrumented_ms`: medians of the samples; `ratio`: the second over the first. `origin`: "example",
    or the script's name. `recorded` of `ctas` CTAs have events. `why_all`: why all have, where a sample was asked for.
    `original`, `instrumented`: what the kernels take; `same_order`: whether a CTA that is recorded has the original's
    order of instructions.
    """

    kernel: str
    origin: str
    way: Way
    original_ms: float = Field(gt=0)
    instrumented_ms: float = Field(gt=0)
    ratio: float = Field(gt=0)
    original_samples_ms: Samples
    instrumented_samples_ms: Samples
    ctas: int
    recorded: int
    why_all: str
    original: KernelResources
    instrumented: KernelResources
    same_order: bool
    confidence: Literal["high", "medium", "low"]

    @property
    def cost(self) -> float:
        """The share by which events lengthen a launch."""
        return self.ratio - 1


ROWS: TypeAdapter[DisturbanceRow] = TypeAdapter(DisturbanceRow)


@dataclass(frozen=True)
class Work:
    """A script and its kernels: what each is called in the record -> pattern; all by their own names if none is."""

    origin: str
    path: Path
    arguments: tuple[str, ...] = ()
    kernels: tuple[tuple[str, str], ...] = ()


def run(console: Console, results: Path, scripts: Sequence[Path], *, require_gpu: bool) -> None:
    """Trace examples and scripts both ways; show these, and what is recorded of other kernels.

    Raises `UsageError` if nothing is recorded, or a script is not there.
    """
    if missing := [path for path in scripts if not path.is_file()]:
        raise UsageError(f"there is no script {missing[0]}")
    works = [Work("example", one.path, tuple(one.arguments), tuple(one.kernels.items())) for one in EXAMPLES]
    works += [Work(path.stem, path.absolute()) for path in scripts]
    found = measured_or_recorded(
        console,
        results,
        "disturbance",
        ROWS,
        partial(measure, console, works),
        require_gpu=require_gpu,
        in_children=True,
    )
    store = RecordStore(found.folder, "disturbance", ROWS)
    rows = newest_of_each(store.points())
    console.print(table(rows, stamp(store, rows, "recorded")))
    for line in (*sentences(rows), *_with_all_alone(rows)):
        console.print(line)


def measure(console: Console, works: Sequence[Work], common: Common) -> Iterator[DisturbanceRow]:
    """The rows of each script, both ways one after the other; what fails is printed and left out."""
    both = [(work, way) for work in works for way in get_args(Way)]
    with tempfile.TemporaryDirectory(prefix="kperf-disturbance-") as folder:
        commands = [
            trace_command(
                (str(work.path), *work.arguments),
                (pattern for _, pattern in work.kernels),
                Path(folder, str(place)),
                *("--ctas", way, "--passes", "1"),
            )
            for place, (work, way) in enumerate(both)
        ]
        for ended in child.side_by_side(commands, child.at_once(), _LIMIT_S):
            work, way = both[ended.place]
            if fault := _fault(ended):
                console.print(f"{work.path.name}, {way} CTAs: {fault}")
            written = sorted(Path(folder, str(ended.place)).glob("*.timeline.json"))
            for name, timeline in _named(work, [read_timeline(path) for path in written]):
                if timeline.overhead.original_samples_ms and timeline.resources:
                    yield row(common, name, work.origin, way, timeline)
                else:
                    console.print(f"{name}: its script launches it too few times to time it")


def newest_of_each(rows: Sequence[DisturbanceRow]) -> list[DisturbanceRow]:
    """Of each kernel the rows of the last run that traced it both ways, else of the last that traced it.

    A cost is of one kernel's launches, in turn: kernels do not depend on each other, nor do runs.
    """
    runs: dict[tuple[str, str], dict[str, list[DisturbanceRow]]] = {}
    for one in rows:
        runs.setdefault((one.origin, one.kernel), {}).setdefault(one.run, []).append(one)
    return [one for of_kernel in runs.values() for one in max(reversed(of_kernel.values()), key=len)]


def _fault(ended: child.Ended) -> str:
    """Why an end is none to be content with, else nothing."""
    if ended.status is None:
        return f"it took more than {_LIMIT_S} s"
    return f"exit status {ended.status}: {(ended.printed.strip().splitlines() or ['-'])[-1]}" if ended.status else ""


def _named(work: Work, timelines: Sequence[Timeline]) -> Iterator[tuple[str, Timeline]]:
    """The kernels of a script by the names of the record; of several that fit a pattern the slowest."""
    for name, pattern in work.kernels:
        fitting = [timeline for timeline in timelines if fnmatchcase(timeline.kernel, pattern)]
        if fitting:
            yield name, max(fitting, key=lambda timeline: timeline.overhead.launch_ms)
    if not work.kernels:
        yield from ((timeline.kernel, timeline) for timeline in timelines)


def row(common: Common, name: str, origin: str, way: Way, timeline: Timeline) -> DisturbanceRow:
    """The record of a kernel that was traced one way. Its timeline has resources and samples."""
    assert timeline.resources is not None
    samples = timeline.overhead.original_samples_ms, timeline.overhead.instrumented_samples_ms
    original_ms, instrumented_ms = map(statistics.median, samples)
    return DisturbanceRow(
        **common,
        kernel=name,
        origin=origin,
        way=way,
        original_ms=original_ms,
        instrumented_ms=instrumented_ms,
        ratio=instrumented_ms / original_ms,
        original_samples_ms=samples[0],
        instrumented_samples_ms=samples[1],
        ctas=timeline.sampled.ctas if timeline.sampled else timeline.ctas,
        recorded=timeline.ctas,
        why_all=timeline.why_all,
        original=timeline.resources.original,
        instrumented=timeline.resources.instrumented,
        same_order=timeline.sass_order.same,
        confidence=timeline.confidence.level,
    )


def table(rows: Sequence[DisturbanceRow], stamp: str) -> Table:
    """A row a kernel and way."""
    numbers = ("original, ms", "slower by", "registers", "bytes spilled", "CTAs an SM")
    headers = ("kernel", "CTAs", *numbers, "order")
    made = titled_table(f"what events cost a launch; {stamp}", *headers, left=("kernel", "CTAs", "order"))
    for one in sorted(rows, key=lambda row: (row.origin != "example", row.kernel)):  # both ways one under the other
        before, after = one.original, one.instrumented
        made.add_row(
            one.kernel,
            "all" if one.recorded == one.ctas else f"{one.recorded} of {one.ctas}",
            f"{one.original_ms:.4f}",
            f"{one.cost:+.1%}",
            f"{before.registers} -> {after.registers}",
            f"{before.spilled_bytes} -> {after.spilled_bytes}",
            f"{before.occupancy} -> {after.occupancy}",
            "the original's" if one.same_order else "another",
        )
    return made


def markdown(folder: Path) -> str:
    """A section of docs/accuracy.md: what it comes to, a row a kernel, and which kernels cannot be recorded in part.

    Raises `UsageError` for a broken record.
    """
    store = RecordStore(folder, "disturbance", ROWS)
    rows = newest_of_each(store.points())
    cells: dict[tuple[bool, str, str], dict[Way, DisturbanceRow]] = {}
    for one in rows:
        cells.setdefault((one.origin != "example", one.origin, one.kernel), {})[one.way] = one
    lines = [f"{stamp(store, rows, 'Recorded')}.", "", *(f"- {line}" for line in sentences(rows)), ""]
    table = [
        (
            f"`{kernel}`{'' if origin == 'example' else f' ({origin})'}",
            f"{next(iter(ways.values())).original_ms:.4f}",
            _cost(ways.get("all")),
            _changes(ways.get("all")),
            _cost(ways.get("sampled")),
            *(ways[way].confidence if way in ways else "not measured" for way in get_args(Way)),
        )
        for (_, origin, kernel), ways in sorted(cells.items())
    ]
    head = (
        "kernel",
        "time of a launch without timestamps (events), ms",
        "change of a launch's time if all CTAs write timestamps (events)",
        "what else changes in the kernel if all CTAs write timestamps (events)",
        "change of a launch's time if only some CTAs write timestamps (events)",
        "confidence if all CTAs write timestamps (events)",
        "confidence if only some CTAs write timestamps (events)",
    )
    others = [f"- {line}" for line in _with_all_alone(rows)]
    return "\n".join([*lines, *md.table(head, table), *(["", *others] if others else [])])


def _cost(row: DisturbanceRow | None) -> str:
    if row is None:
        return "not measured"
    return "not possible" if row.why_all else f"{row.cost:+.1%}"


def _changes(row: DisturbanceRow | None) -> str:
    """Why events cost a launch what they do, by what the compiler made of it; else only the time changes."""
    if row is None:
        return "not measured"
    before, after = row.original, row.instrumented
    changes = []
    if before.occupancy != after.occupancy:
        fit = agreeing(after.occupancy, "CTA fits", "CTAs fit")
        changes.append(f"{after.occupancy} {fit} on an SM instead of {before.occupancy}")
    if after.spilled_bytes > before.spilled_bytes + COUNTER_BYTES:
        changes.append(f"a thread spills {after.spilled_bytes - before.spilled_bytes} bytes more")
    if not row.same_order:
        changes.append("the order of instructions")
    return ", ".join(changes) or "nothing"


def _of_samples(rows: Sequence[DisturbanceRow]) -> list[str]:
    """Both ways of the kernels that can be recorded in part."""
    kernels = {(one.origin, one.kernel) for one in rows if one.way == "sampled" and not one.why_all}
    costs = {
        way: [abs(one.cost) for one in rows if one.way == way and (one.origin, one.kernel) in kernels]
        for way in get_args(Way)
    }
    if not kernels or not all(costs.values()):
        return []
    every, sampled = costs["all"], costs["sampled"]
    return [
        f"In the {len(kernels)} {agreeing(len(kernels), 'kernel', 'kernels')} of which kperf can let only some CTAs "
        f"write events, the time of a launch changes by {statistics.fmean(every):.1%} on average and by "
        f"{max(every):.1%} at worst with {_WITH_EVENTS['all']}, and by {statistics.fmean(sampled):.1%} on average and "
        f"by {max(sampled):.1%} at worst with {_WITH_EVENTS['sampled']}."
    ]


def _of_auto(rows: Sequence[DisturbanceRow]) -> list[str]:
    """What events cost the launches that `--ctas auto` reads cycles from, by these rows."""
    ways: dict[tuple[str, str], dict[Way, DisturbanceRow]] = {}
    for one in rows:
        ways.setdefault((one.origin, one.kernel), {})[one.way] = one
    both = [(found["all"], found["sampled"]) for found in ways.values() if len(found) == len(get_args(Way))]
    if not both:
        return []
    read = [
        sample if _disturbs(every) and not sample.why_all and abs(sample.cost) < abs(every.cost) else every
        for every, sample in both
    ]
    worst, count = max(read, key=lambda one: abs(one.cost)), sum(one.way == "sampled" for one in read)
    return [
        f"By the measured times, --ctas auto would choose events in only some CTAs for {count} of {len(read)} kernels, "
        f"and events in all CTAs for the other {len(read) - count}. With the events that --ctas auto would choose, the "
        f"time of a launch changes by {_mean(read):.1%} on average over the {len(read)} kernels, by "
        f"{statistics.median(abs(one.cost) for one in read):.1%} in the median and by {abs(worst.cost):.1%} at worst "
        f"({worst.kernel})."
    ]


def _disturbs(every: DisturbanceRow) -> bool:
    """As `kperf.trace.capture.sampled.disturbs`."""
    if round(abs(every.cost), 4) > UNDISTURBED or every.original.occupancy != every.instrumented.occupancy:
        return True
    return not every.same_order


def _without_the_worst(rows: Sequence[DisturbanceRow]) -> list[str]:
    """The averages without the kernel that makes more than half of them, and what the compiler made of it."""
    every = sorted((one for one in rows if one.way == "all"), key=lambda one: abs(one.cost))
    if len(every) < 2:
        return []
    *others, worst = every
    if 2 * _mean(others) >= _mean(every):
        return []
    key = worst.origin, worst.kernel
    left = {way: [one for one in rows if one.way == way and (one.origin, one.kernel) != key] for way in get_args(Way)}
    means = (f"by {_mean(found):.1%} on average with {_WITH_EVENTS[way]}" for way, found in left.items() if found)
    before, after = worst.original, worst.instrumented
    return [
        f"Without {worst.kernel}, the time of a launch changes {' and '.join(means)}. With events {worst.kernel} has "
        f"{after.registers} registers and spills {after.spilled_bytes} bytes; without events {worst.kernel} has "
        f"{before.registers} registers and spills {before.spilled_bytes} bytes."
    ]


def _mean(rows: Sequence[DisturbanceRow]) -> float:
    return statistics.fmean(abs(one.cost) for one in rows)


def _noise(rows: Sequence[DisturbanceRow]) -> list[str]:
    """Of how many launches a cost is, and how far apart two measurements of one instrumented kernel are."""
    launches = sorted({len(one.original_samples_ms) for one in rows})
    lines = []
    if launches:
        *few, most = map(str, launches)
        counts = f"{', '.join(few)} or {most}" if few else most
        lines.append(
            f"Each change of a launch's time compares the median time of {counts} launches with events to the median "
            "time of as many launches without events."
        )
    again = {(one.origin, one.kernel): one.ratio for one in rows if one.way == "sampled" and one.why_all}
    first = {(one.origin, one.kernel): one.ratio for one in rows if one.way == "all"}
    if apart := [abs(again[key] / first[key] - 1) for key in again.keys() & first.keys()]:
        lines.append(
            f"kperf measured {len(apart)} {agreeing(len(apart), 'kernel', 'kernels')} in two runs with events in all "
            "CTAs. The time of a launch with events, divided by the time without events, differs between the two runs "
            f"of a kernel by {statistics.median(apart):.1%} in the median and {max(apart):.1%} at most."
        )
    return lines


def _faster(rows: Sequence[DisturbanceRow]) -> list[str]:
    """Kernels that events make faster, with the registers that the compiler gave."""
    named = [
        f"{one.kernel} ({one.cost:+.1%} with {_WITH_EVENTS[one.way]}, {one.instrumented.registers} registers instead "
        f"of {one.original.registers})"
        for one in rows
        if one.cost < -_SMALL and not (one.way == "sampled" and one.why_all)
    ]
    if not named:
        return []
    return [
        "Some kernels are faster with events, because the compiler gives a kernel with events other registers: "
        f"{', '.join(named)}."
    ]


def sentences(rows: Sequence[DisturbanceRow]) -> list[str]:
    """What it comes to beside the goals; first with the CTAs that `--ctas auto`, the default, chooses."""
    lines = _of_auto(rows)
    for way in get_args(Way):
        these = [one for one in rows if one.way == way]
        if these:
            mean, worst = _mean(these), max(these, key=lambda one: abs(one.cost))
            met = "met" if mean <= GOALS[0] and abs(worst.cost) <= GOALS[1] else "not met"
            middle = statistics.median(abs(one.cost) for one in these)
            others = " (or in all CTAs, where only some CTAs are not possible)" if way == "sampled" else ""
            lines.append(
                f"With {_WITH_EVENTS[way]}{others}, the time of a launch changes by {mean:.1%} on average over "
                f"{len(these)} kernels, {middle:.1%} in the median and {abs(worst.cost):.1%} at worst "
                f"({worst.kernel}). Our goals with {_WITH_EVENTS[way]}, {GOALS[0]:.0%} on average and {GOALS[1]:.0%} "
                f"at worst, are {met}."
            )
    return [*lines, *_without_the_worst(rows), *_of_samples(rows), *_noise(rows), *_faster(rows)]


def _with_all_alone(rows: Sequence[DisturbanceRow]) -> list[str]:
    """Kernels that are recorded with events in all CTAs or not at all, and why."""
    alone = [one for one in rows if one.why_all]
    return [f"Events in only some CTAs of {one.kernel} are not possible, because {_why(one)}." for one in alone]


def _why(row: DisturbanceRow) -> str:
    """Why all CTAs are recorded, for a reader who has not seen a kernel that holds both codes."""
    words = row.why_all.replace(
        "beside the instrumented code its own code",
        "the code without events changes when kperf compiles it together with the code with events: it then",
    )
    words = re.sub(r", and ((?:at )?\d+) alone$", r", and \1 if compiled alone", words)
    return re.sub(
        r"^of its (\d+) CTAs a sample has (\d+), and (\d+) are needed$",
        r"\2 of its \1 CTAs would write events, and kperf needs at least \3 CTAs with events",
        words,
    )
