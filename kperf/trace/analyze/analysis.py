"""Read a timeline: where the cycles go, what the tensor cores wait for, what released a wait.

Statistics of regions and iteration times are over every CTA of the launch; bubbles, which follow one CTA at a time, are
over SAMPLED_CTAS CTAs spread evenly over it, or fewer where CTAs are long.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.ir.sources import Value
from kperf.trace.analyze.finding import Source
from kperf.trace.analyze.models import (
    Bar,
    Bound,
    Bubble,
    Duty,
    Hidden,
    Quantiles,
    RegionPart,
    RegionTime,
    Role,
    UnitOfCompute,
    Window,
)
from kperf.trace.analyze.timeline import Cta, InFlight, Launch, Neighbours, Span
from kperf.trace.instrument.program import Interval, IntervalKind, Mma, Program

SAMPLED_CTAS = 96
SAMPLED_INTERVALS = 300_000

WINDOW_ITERATIONS = 5
"""Of a typical CTA, what is kept to draw it."""

_DUTIES: dict[tuple[bool, bool], Duty] = {
    (True, True): "MMAs and loads",
    (True, False): "MMAs",
    (False, True): "loads",
    (False, False): "neither",
}
_SMALL_BUBBLE = 0.01
_FEWEST_ITERATIONS = 4


def quantiles(values: NDArray[np.int64]) -> Quantiles:
    """Median, 5th and 95th percentile. Raises `UsageError` when there are none."""
    if values.size == 0:
        raise UsageError("the trace has no iteration of a main loop: trace a longer sequence")
    p5, median, p95 = np.percentile(values, [5, 50, 95])
    return Quantiles(median=float(median), p5=float(p5), p95=float(p95))


def roles(launch: Launch) -> list[Role]:
    """What each warp group does for the others."""
    made = []
    for group in map(launch.program.group, launch.groups):
        duty = _DUTIES["MMAs" in group.issues, "loads" in group.issues]
        made.append(Role(warp_group=group.name, duty=duty, first_warp=group.first_warp, num_warps=group.num_warps))
    return made


def issuers(launch: Launch) -> list[str]:
    """The warp groups that issue MMAs."""
    return [role.warp_group for role in roles(launch) if role.duty.startswith("MMAs")]


def looping(launch: Launch) -> list[str]:
    """The warp groups whose iterations tell how far a CTA is: those that issue MMAs, else those that have a loop."""
    with_loop = [group for group in launch.groups if launch.main_scope[group] is not None]
    return [group for group in issuers(launch) if group in with_loop] or with_loop


def iteration_time(launch: Launch) -> Quantiles:
    """Cycles from iteration to iteration of the issuing groups' main loops, over all of them."""
    return quantiles(
        np.concatenate([launch.iteration_times(group) for group in issuers(launch)] or [np.zeros(0, np.int64)])
    )


def bound(launch: Launch) -> Bound:
    """The speed-of-light bound: cycles that the MMAs of an iteration take at the peak rates of their types."""
    mmas = launch.mmas_per_iteration()
    return Bound(
        cycles=sum(map(launch.program.cycles, mmas)),
        dtype="+".join(dict.fromkeys(mma.dtype for mma in mmas)),
        instruction="+".join(dict.fromkeys(mma.instruction for mma in mmas)),
    )


def unit_of_compute(program: Program) -> UnitOfCompute:
    """Tensor cores if any MMA is computed on them."""
    computed = {
        step.instruction != "FMA"
        for interval in program.intervals.values()
        for step in interval.queue
        if isinstance(step, Mma)
    }
    return "tensor core" if True in computed else "fma" if computed else "none"


def unit_cycles(launch: Launch) -> float | None:
    """Cycles that all MMAs of the launch take at their peak rates; None if events were lost."""
    if launch.events.lost:
        return None
    cycles = launch.program.cycles
    each = [sum(cycles(step) for step in i.queue if isinstance(step, Mma)) for i in launch.intervals]
    return float(np.dot(each, np.where(launch.recorded_once(), launch.ran, 0)))


def unit_use_of_sm(launch: Launch, chosen: Sequence[int]) -> tuple[float, float] | None:
    """Of an SM while one of the chosen CTAs runs: the share of the peak rate, and of the time with an MMA in flight.

    All CTAs that run beside it count. The operations of an MMA are spread over the time that it is in flight. None
    where `Launch.neighbours` is.
    """
    groups = {group for group in launch.groups if launch.program.code(group) == group}
    work = covered = observed = 0.0
    for number in chosen:
        sm = launch.neighbours(number)
        if sm is None:
            return None
        low, high = sm.residents[0].start, sm.residents[0].end
        in_flight = [mma for resident in sm.residents for mma in resident.in_flight() if mma.group in groups]
        observed += high - low
        covered += sum(end - start for start, end in union(in_flight, low, high))
        for mma in in_flight:
            inside = min(mma.end, high) - max(mma.start, low)
            if inside > 0:
                work += mma.work * inside / (mma.end - mma.start)
    return (work / observed, covered / observed) if observed else None


def boundary(launch: Launch, iteration_cycles: float) -> Quantiles | None:
    """Cycles by which the step from tile to tile is longer than from iteration to iteration; None without such steps.

    The first MMA of the one tile and the last of the other are computed in them.
    """
    steps = np.concatenate([launch.boundaries(group) for group in issuers(launch)])
    if not steps.size:
        return None
    beyond = quantiles(steps)
    return Quantiles(
        median=beyond.median - iteration_cycles, p5=beyond.p5 - iteration_cycles, p95=beyond.p95 - iteration_cycles
    )


def region_times(launch: Launch) -> list[RegionTime]:
    """Every region that has a share of its group's lifetime, in the order of the program."""
    result = []
    for group in launch.groups:
        kinds = [kind for kind, interval in enumerate(launch.intervals) if interval.group == group]
        lifetime = int(launch.spent[kinds].sum())
        iterations = max(launch.iterations(group), 1)
        for name in dict.fromkeys(launch.intervals[kind].name for kind in kinds):
            named = [kind for kind in kinds if launch.intervals[kind].name == name and launch.ran[kind]]
            if not named:
                continue
            inside = [kind for kind in named if launch.in_loop[kind]]
            result.append(
                RegionTime(
                    warp_group=group,
                    name=name,
                    kind=launch.intervals[named[0]].kind,
                    cycles=quantiles(np.concatenate([launch.cycles_of[kind] for kind in inside or named])),
                    share=int(launch.spent[named].sum()) / lifetime,
                    per_iteration=float(launch.spent[inside].sum()) / iterations,
                    parts=region_parts(launch.intervals[kind] for kind in named),
                    source=source_of(launch.intervals[kind] for kind in named),
                )
            )
    return result


def region_parts(intervals: Iterable[Interval]) -> list[RegionPart]:
    """The kinds of work of a region's intervals, each once."""
    parts = dict.fromkeys(part for interval in intervals for part in interval.parts)
    return [RegionPart(name=part.name, kind=part.kind) for part in parts]


def source_of(intervals: Iterable[Interval]) -> Source | None:
    """Where the first of some intervals stands, its file as the compiler names it."""
    source = next((interval.source for interval in intervals if interval.source), None)
    return source and Source(file=source[0], line=source[1])


def sample(launch: Launch) -> list[Cta]:
    """The CTAs of `sampled`."""
    return list(launch.ctas(sampled(launch)))


def sampled(launch: Launch) -> NDArray[np.int64]:
    """SAMPLED_CTAS whole CTAs, spread evenly over the launch; fewer if there are, or if they are long."""
    whole = launch.whole_ctas
    affordable = SAMPLED_INTERVALS * launch.events.n_ctas // max(len(launch.kind), 1)
    n_ctas = min(SAMPLED_CTAS, len(whole), max(affordable, 1))
    chosen: NDArray[np.int64] = whole[np.unique(np.linspace(0, len(whole) - 1, n_ctas).astype(int))]
    return chosen


def steady_windows(cta: Cta, groups: Sequence[str]) -> list[tuple[int, int]]:
    """Of each tile, from when the last group starts its second iteration to when the first starts its last one."""
    windows = []
    for iterations in zip(*(cta.tiles(group) for group in groups), strict=False):
        if min(map(len, iterations)) >= _FEWEST_ITERATIONS:
            low, high = max(starts[1] for starts in iterations), min(starts[-1] for starts in iterations)
            windows += [(low, high)] if low < high else []
    return windows


def exported_window(cta: Cta, groups: Sequence[str], most_spans: int) -> tuple[int, int]:
    """The cycles of a CTA that are worth showing: all, or of several tiles the middle one and how the next begins.

    Where these hold more than `most_spans` spans, so many whole iterations of `groups` from their middle as do not; of
    an iteration that alone holds more, its beginning.
    """
    low, high = cta.start, cta.end
    tiles = list(zip(*(cta.tiles(group) for group in groups), strict=False))
    if len(tiles) > 1:
        middle, following = tiles[(len(tiles) - 1) // 2 :][:2]
        low, high = min(starts[0] for starts in middle), max(starts[:_FEWEST_ITERATIONS][-1] for starts in following)
    starts = sorted(span.start for spans in cta.spans.values() for span in spans)

    def spans(window: tuple[int, int]) -> int:
        return bisect_left(starts, window[1]) - bisect_left(starts, window[0])

    if spans((low, high)) <= most_spans:
        return low, high
    iterations = [
        iteration for iteration in iteration_starts(cta, groups) if low <= min(iteration) and max(iteration) <= high
    ] or [(low,), (high,)]

    def window(number: int) -> tuple[int, int]:
        first = (len(iterations) - 1 - number) // 2
        return min(iterations[first]), max(iterations[first + number])

    fitting = bisect_right(range(1, len(iterations)), most_spans, key=lambda number: spans(window(number)))
    if fitting:
        return window(fitting)
    begin = min(iterations[(len(iterations) - 1) // 2])
    return begin, starts[min(bisect_left(starts, begin) + most_spans, len(starts) - 1)]


def iteration_starts(cta: Cta, groups: Sequence[str]) -> list[tuple[int, ...]]:
    """Of each iteration that all these groups make, when each of them starts it."""
    return list(zip(*(list(chain.from_iterable(cta.tiles(group))) for group in groups), strict=False))


def union(mmas: Iterable[InFlight], low: int, high: int) -> list[tuple[int, int]]:
    """Disjoint stretches of [low, high] with at least one MMA in flight."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((max(f.start, low), min(f.end, high)) for f in mmas):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def idle(mmas: Iterable[InFlight], low: int, high: int) -> list[tuple[int, int]]:
    """The stretches of [low, high] with no MMA in flight."""
    edges = [low, *(edge for stretch in union(mmas, low, high) for edge in stretch), high]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def bubbles(launch: Launch, sms: Sequence[Neighbours], iteration_cycles: float) -> tuple[list[Bubble], float] | None:
    """What the issuing groups do while no MMA is in flight, in cycles of an iteration; and the share of time with one.

    In the main loop of the first CTA of each SM, with the MMAs and the groups of all that are there. Of several
    warps that run the same code the first stands for all. None where no CTA has steady iterations.
    """
    groups = [group for group in issuers(launch) if launch.program.code(group) == group]
    causes: Counter[str] = Counter()
    observed = 0
    for sm in sms:
        windows = steady_windows(sm.residents[0].cta, groups)
        observed += sum(high - low for low, high in windows)
        in_flight = [mma for resident in sm.residents for mma in resident.in_flight()]
        rows = [(resident, resident.cta.spans[group]) for resident in sm.residents for group in groups]
        begun = (span.start + resident.later for resident, spans in rows for span in spans)
        changes = sorted([*begun, *(resident.end for resident in sm.residents)])
        for start, end in [stretch for window in windows for stretch in idle(in_flight, *window)]:
            between = changes[bisect_right(changes, start) : bisect_left(changes, end)]
            for low, high in pairwise(sorted({start, end, *between})):
                there = ((cta, spans) for cta, spans in rows if cta.start <= low < cta.end)
                causes[_cause(sorted(_at(spans, low - cta.later) for cta, spans in there))] += high - low
    if not observed:
        return None
    total = sum(causes.values())
    scale = iteration_cycles / observed
    named = [
        Bubble(cause=cause, cycles=cycles * scale)
        for cause, cycles in causes.most_common()
        if cycles > _SMALL_BUBBLE * observed
    ]
    rest = total * scale - sum(bubble.cycles for bubble in named)
    if rest > 0.5:
        named.append(Bubble(cause="other", cycles=rest))
    return named, 1 - total / observed


def hidden_arithmetic(launch: Launch, ctas: Sequence[Cta]) -> Hidden:
    """How much of the arithmetic the tensor cores work under, in cycles of an iteration of one group."""
    groups = issuers(launch)
    total = own = anyone = iterations = 0
    for cta in ctas:
        all_mmas = _InFlight(cta.in_flight)
        for group in groups:
            of_group = _InFlight([mma for mma in cta.in_flight if mma.group == group])
            spans = [s for s in cta.spans[group] if s.iteration is not None and s.interval.kind == "arithmetic"]
            iterations += len({span.iteration for span in cta.spans[group] if span.iteration is not None})
            for span in spans:
                total += span.cycles
                own += sum(end - start for start, end in union(of_group.near(span), span.start, span.end))
                anyone += sum(end - start for start, end in union(all_mmas.near(span), span.start, span.end))
    iterations = max(iterations, 1)
    return Hidden(cycles=total / iterations, under_own_mmas=own / iterations, under_any_mmas=anyone / iterations)


class _InFlight:
    """In-flight MMAs in the order of their start."""

    def __init__(self, mmas: Sequence[InFlight]) -> None:
        self._mmas = sorted(mmas, key=lambda mma: mma.start)
        self._starts = [mma.start for mma in self._mmas]
        self._longest = max((mma.end - mma.start for mma in mmas), default=0)

    def near(self, span: Span) -> list[InFlight]:
        """All that can overlap with the span."""
        low, high = (bisect_left(self._starts, cycle) for cycle in (span.start - self._longest, span.end))
        return self._mmas[low:high]


def _at(spans: list[Span], cycle: int) -> str:
    """What a warp group does at a cycle; its spans follow each other."""
    place = bisect_right(spans, cycle, key=attrgetter("end"))
    return spans[place].interval.name if place < len(spans) and spans[place].start <= cycle else "done"


def _cause(doing: list[str]) -> str:
    names = list(dict.fromkeys(doing))
    if len(names) == 1:
        return f"{'both' if len(doing) == 2 else 'all'} in {names[0]}" if len(doing) > 1 else names[0]
    return " beside ".join(names)


@dataclass(frozen=True)
class Release:
    """The moment in another warp group that led to a wait's end, and the load that was under way since, if any."""

    group: str
    cycle: int
    load: str | None


@dataclass(frozen=True)
class Load:
    """A load from its issue to the end of the first wait for it; what it fills may have arrived before."""

    buffer: str
    group: str
    start: int
    end: int


def issued_loads(cta: Cta) -> dict[Value, list[tuple[int, str, str]]]:
    """Stage ring of full barriers -> (cycle of issue, group, buffer) of the loads into it, in order.

    What is loaded in a recorded region was issued just before its end, else just after the gap's start.
    """
    loads: dict[Value, list[tuple[int, str, str]]] = defaultdict(list)
    for group, spans in cta.spans.items():
        for span in spans:
            for buffer, stage_ring in span.interval.loads:
                loads[stage_ring].append((span.end if span.interval.kind == "wait" else span.start, group, buffer))
    return loads


def waits(cta: Cta) -> Iterator[tuple[str, int, Value, int]]:
    """(group, index of the span, stage ring, number) of every wait: the number counts the group's waits for it."""
    for group, spans in cta.spans.items():
        counts: Counter[Value] = Counter()
        for index, span in enumerate(spans):
            for stage_ring in span.interval.waits:
                yield group, index, stage_ring, counts[stage_ring]
                counts[stage_ring] += 1


def loads(cta: Cta) -> list[Load]:
    """Every load of a CTA that a warp group waited for."""
    issued = issued_loads(cta)
    used: dict[tuple[Value, int], Load] = {}
    for group, index, stage_ring, number in waits(cta):
        if number < len(issued.get(stage_ring, ())):
            cycle, loader, buffer = issued[stage_ring][number]
            end = cta.spans[group][index].end
            if cycle < end and ((stage_ring, number) not in used or end < used[stage_ring, number].end):
                used[stage_ring, number] = Load(buffer, loader, cycle, end)
    return sorted(used.values(), key=lambda load: load.start)


def releases(cta: Cta, program: Program) -> dict[tuple[str, int], Release]:
    """(group, index of its span) -> what the end of that wait hangs on in another warp group.

    The n-th wait for a full stage on the n-th load into the stage ring, be it late or not: when it arrived is not
    recorded. The n-th wait for an empty stage on the (n - stages)-th arrive of the group that came last, if that came
    later than the wait began.
    """
    issued = issued_loads(cta)
    signals: dict[Value, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for group, spans in cta.spans.items():
        for span in spans:
            for stage_ring in span.interval.signals:
                signals[stage_ring][group].append(span)
    released = {}
    for group, index, stage_ring, number in waits(cta):
        span = cta.spans[group][index]
        if span.interval.kind != "wait":
            continue
        if stage_ring in issued:
            release = _load_release(issued[stage_ring], number, group)
        else:
            release = _signal_release(signals[stage_ring], number - program.stages.get(stage_ring, 1), span)
        if release is not None and release.cycle <= span.end:
            released[group, index] = release
    return released


def signalled(span: Span) -> int:
    """When a span's signals are sent: in a recorded region or after the issue of MMAs at its end, else at once."""
    return span.end if span.interval.kind in ("tensor", "wait", "issue") else span.start


def _load_release(loads: list[tuple[int, str, str]], number: int, waiter: str) -> Release | None:
    if number >= len(loads):
        return None
    cycle, group, buffer = loads[number]
    return Release(group, cycle, f"load {buffer}") if group != waiter else None


def _signal_release(signals: dict[str, list[Span]], number: int, wait: Span) -> Release | None:
    if number < 0:
        return None
    sent = [(spans[number], group) for group, spans in signals.items() if number < len(spans)]
    if not sent:
        return None
    last, group = max(sent, key=lambda sender: (signalled(sender[0]), sender[1]))
    if signalled(last) <= wait.start or last.start > wait.end:
        return None
    return Release(group, min(signalled(last), wait.end), None)  # the event behind a signal may be later than the wait


def windows(cta: Cta, groups: Sequence[str]) -> list[Window]:
    """What to draw of a CTA: WINDOW_ITERATIONS of the first of `groups` in its middle, of several tiles also an end."""
    tiles = cta.tiles(groups[0])
    edges = [start - cta.start for tile in tiles for start in tile]
    if not edges:
        return []
    bars, edges = bars_of(cta), [*edges, cta.end - cta.start]
    shown = [_window("iterations", bars, edges[(len(edges) - 1) // 2 :])]
    if len(tiles) > 1:
        shown.append(_window("tile boundary", bars, edges[len(tiles[0]) - 1 :]))
    return shown


def _window(shows: Literal["iterations", "tile boundary"], bars: list[Bar], edges: list[int]) -> Window:
    low, *_, high = edges[: WINDOW_ITERATIONS + 1]
    inside = [bar for bar in bars if bar.start < high and bar.start + bar.cycles > low]
    return Window(shows=shows, start=low, bars=inside)


def kinds_of(interval: Interval) -> list[IntervalKind]:
    """The kinds of work of an interval that does more than one; signals take no time."""
    kinds = list(dict.fromkeys(part.kind for part in interval.parts if part.kind not in ("signal", "other")))
    return kinds if len(kinds) > 1 else []


def bars_of(cta: Cta) -> list[Bar]:
    """All of a CTA, its cycles counted from its first event."""
    first = cta.start
    bars = [
        Bar(
            track="warps",
            warp_group=group,
            name=span.interval.name,
            kind=span.interval.kind,
            start=span.start - first,
            cycles=span.cycles,
            iteration=span.iteration,
            parts=kinds_of(span.interval),
        )
        for group, spans in cta.spans.items()
        for span in spans
        if span.cycles > 0
    ]
    bars += [
        Bar(
            track="MMAs",
            warp_group=mma.group,
            name=mma.name,
            kind="tensor",
            start=mma.start - first,
            cycles=mma.end - mma.start,
            iteration=mma.iteration,
        )
        for mma in cta.in_flight
    ]
    return bars + [
        Bar(
            track="loads",
            warp_group=load.group,
            name=load.buffer,
            kind="load",
            start=load.start - first,
            cycles=load.end - load.start,
            iteration=None,
        )
        for load in loads(cta)
    ]
