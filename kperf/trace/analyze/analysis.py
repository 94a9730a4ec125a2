"""Read a timeline: where the cycles go, what the tensor cores wait for, what released a wait.

Statistics of regions and periods are over every block of the launch; bubbles, which follow one block at a time, are
over SAMPLED_BLOCKS blocks spread evenly over it, or fewer where blocks are long.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.ir.dataflow import Value
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
from kperf.trace.analyze.timeline import Block, Flight, Launch, Span
from kperf.trace.instrument.program import Interval, IntervalKind, Product, Program

SAMPLED_BLOCKS = 96
SAMPLED_INTERVALS = 300_000

WINDOW_TRIPS = 5
"""Of a typical block, what is kept to draw it."""

_DUTIES: dict[tuple[bool, bool], Duty] = {
    (True, True): "MMAs and loads",
    (True, False): "MMAs",
    (False, True): "loads",
    (False, False): "neither",
}
_SMALL_BUBBLE = 0.01
_FEWEST_TRIPS = 4


def quantiles(values: NDArray[np.int64]) -> Quantiles:
    """Median, 5th and 95th percentile. Raises `UsageError` when there are none."""
    if values.size == 0:
        raise UsageError("the trace has no iteration of a main loop: trace a longer sequence")
    p5, median, p95 = np.percentile(values, [5, 50, 95])
    return Quantiles(median=float(median), p5=float(p5), p95=float(p95))


def roles(launch: Launch) -> list[Role]:
    """What each warp group does for the others."""
    found = []
    for group in map(launch.program.group, launch.groups):
        duty = _DUTIES["products" in group.issues, "loads" in group.issues]
        found.append(Role(warp_group=group.name, duty=duty, first_warp=group.first_warp, num_warps=group.num_warps))
    return found


def issuers(launch: Launch) -> list[str]:
    """The warp groups that issue matrix products."""
    return [role.warp_group for role in roles(launch) if role.duty.startswith("MMAs")]


def looping(launch: Launch) -> list[str]:
    """The warp groups whose trips tell how far a block is: those that issue products, else those that have a loop."""
    with_loop = [group for group in launch.groups if launch.main_scope[group] is not None]
    return [group for group in issuers(launch) if group in with_loop] or with_loop


def period(launch: Launch) -> Quantiles:
    """Cycles from trip to trip of the issuing groups' main loops, over all of them."""
    return quantiles(np.concatenate([launch.periods(group) for group in issuers(launch)] or [np.zeros(0, np.int64)]))


def bound(launch: Launch) -> Bound:
    """The cycles that the products of a trip take at the peak rates of their types."""
    products = launch.products_per_trip()
    return Bound(
        cycles=sum(map(launch.program.cycles, products)),
        dtype="+".join(dict.fromkeys(product.dtype for product in products)),
        instruction="+".join(dict.fromkeys(product.instruction for product in products)),
    )


def unit_of_compute(program: Program) -> UnitOfCompute:
    """Tensor cores if any matrix product is computed on them."""
    computed = {
        step.instruction != "FMA"
        for interval in program.intervals.values()
        for step in interval.queue
        if isinstance(step, Product)
    }
    return "tensor core" if True in computed else "fma" if computed else "none"


def unit_cycles(launch: Launch) -> float | None:
    """Cycles that all matrix products of the launch take at their peak rates; None if events were lost."""
    if launch.records.lost:
        return None
    cycles = launch.program.cycles
    each = [sum(cycles(step) for step in i.queue if isinstance(step, Product)) for i in launch.intervals]
    return float(np.dot(each, np.where(launch.recorded_once(), launch.ran, 0)))


def unit_use_of_sm(launch: Launch, chosen: Sequence[int]) -> tuple[float, float] | None:
    """Of an SM while one of the chosen blocks runs: the share of the peak rate, and of the time with an MMA in flight.

    All blocks that run beside it count. The operations of an MMA are spread over the time that it is in flight. None if
    records of one of them were lost.
    """
    whole = set(launch.whole_blocks().tolist())
    work = covered = observed = 0.0
    for number in chosen:
        residents = launch.beside(number)
        if not whole.issuperset(other for other, _ in residents):
            return None
        (block,) = launch.blocks(np.array([number]))
        in_flight: list[Flight] = []
        for other, later in residents:
            (beside,) = launch.blocks(np.array([other]))
            groups = {role for role in launch.groups if launch.program.code(role) == role}
            in_flight += [
                replace(flight, start=flight.start + later, end=flight.end + later)
                for flight in beside.flights
                if flight.group in groups
            ]
        low, high = block.start, block.end
        observed += high - low
        covered += sum(end - start for start, end in union(in_flight, low, high))
        for flight in in_flight:
            inside = min(flight.end, high) - max(flight.start, low)
            if inside > 0:
                work += flight.work * inside / (flight.end - flight.start)
    return (work / observed, covered / observed) if observed else None


def boundary(launch: Launch, period_cycles: float) -> Quantiles | None:
    """Cycles by which the step from a tile to the next is longer than one from trip to trip; None without such steps.

    The first product of the one tile and the last of the other are computed in them.
    """
    steps = np.concatenate([launch.boundaries(group) for group in issuers(launch)])
    if not steps.size:
        return None
    beyond = quantiles(steps)
    return Quantiles(median=beyond.median - period_cycles, p5=beyond.p5 - period_cycles, p95=beyond.p95 - period_cycles)


def region_times(launch: Launch) -> list[RegionTime]:
    """Every region that has a share of its group's lifetime, in the order of the program."""
    result = []
    for group in launch.groups:
        kinds = [kind for kind, interval in enumerate(launch.intervals) if interval.group == group]
        lifetime = int(launch.spent[kinds].sum())
        trips = max(launch.trips(group), 1)
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
                    per_iteration=float(launch.spent[inside].sum()) / trips,
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
    found = next((interval.source for interval in intervals if interval.source), None)
    return found and Source(file=found[0], line=found[1])


def sample(launch: Launch) -> list[Block]:
    """SAMPLED_BLOCKS whole blocks, spread evenly over the launch; fewer if there are, or if they are long."""
    whole = launch.whole_blocks()
    affordable = SAMPLED_INTERVALS * launch.records.n_blocks // max(len(launch.kind), 1)
    n_blocks = min(SAMPLED_BLOCKS, len(whole), max(affordable, 1))
    chosen = whole[np.unique(np.linspace(0, len(whole) - 1, n_blocks).astype(int))]
    return list(launch.blocks(chosen))


def steady_windows(block: Block, groups: Sequence[str]) -> list[tuple[int, int]]:
    """Of each tile, from when the last group starts its second trip to when the first starts its last one."""
    windows = []
    for trips in zip(*(block.tiles(group) for group in groups), strict=False):
        if min(map(len, trips)) >= _FEWEST_TRIPS:
            low, high = max(starts[1] for starts in trips), min(starts[-1] for starts in trips)
            windows += [(low, high)] if low < high else []
    return windows


def exported_window(block: Block, groups: Sequence[str], most_spans: int) -> tuple[int, int]:
    """The cycles of a block that are worth showing: all, or of several tiles the middle one and how the next begins.

    Where these hold more than `most_spans` spans, so many whole trips of `groups` from their middle as do not; of a
    trip that alone holds more, its beginning.
    """
    low, high = block.start, block.end
    tiles = list(zip(*(block.tiles(group) for group in groups), strict=False))
    if len(tiles) > 1:
        middle, following = tiles[(len(tiles) - 1) // 2 :][:2]
        low, high = min(starts[0] for starts in middle), max(starts[:_FEWEST_TRIPS][-1] for starts in following)
    starts = sorted(span.start for spans in block.spans.values() for span in spans)

    def spans(window: tuple[int, int]) -> int:
        return bisect_left(starts, window[1]) - bisect_left(starts, window[0])

    if spans((low, high)) <= most_spans:
        return low, high
    trips = [trip for trip in trip_starts(block, groups) if low <= min(trip) and max(trip) <= high] or [(low,), (high,)]

    def window(number: int) -> tuple[int, int]:
        first = (len(trips) - 1 - number) // 2
        return min(trips[first]), max(trips[first + number])

    fitting = bisect_right(range(1, len(trips)), most_spans, key=lambda number: spans(window(number)))
    if fitting:
        return window(fitting)
    begin = min(trips[(len(trips) - 1) // 2])
    return begin, starts[min(bisect_left(starts, begin) + most_spans, len(starts) - 1)]


def trip_starts(block: Block, groups: Sequence[str]) -> list[tuple[int, ...]]:
    """Of each trip that all these groups make, when each of them starts it."""
    return list(zip(*(list(chain.from_iterable(block.tiles(group))) for group in groups), strict=False))


def union(flights: Iterable[Flight], low: int, high: int) -> list[tuple[int, int]]:
    """Disjoint stretches of [low, high] under at least one flight."""
    merged: list[tuple[int, int]] = []
    for start, end in sorted((max(f.start, low), min(f.end, high)) for f in flights):
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def idle(flights: Iterable[Flight], low: int, high: int) -> list[tuple[int, int]]:
    """The stretches of [low, high] under no flight."""
    edges = [low, *(edge for stretch in union(flights, low, high) for edge in stretch), high]
    return [(start, end) for start, end in zip(edges[::2], edges[1::2], strict=True) if start < end]


def bubbles(launch: Launch, blocks: Sequence[Block], period_cycles: float) -> tuple[list[Bubble], float]:
    """What the issuing groups do while no product is in flight, in cycles of a trip; and the share of time with one.

    Of several warps that run the same code the first stands for all.
    """
    groups = [group for group in issuers(launch) if launch.program.code(group) == group]
    causes: Counter[str] = Counter()
    observed = 0
    for block in blocks:
        windows = steady_windows(block, groups)
        observed += sum(high - low for low, high in windows)
        changes = sorted(span.start for group in groups for span in block.spans[group])
        for start, end in [stretch for window in windows for stretch in idle(block.flights, *window)]:
            between = changes[bisect_right(changes, start) : bisect_left(changes, end)]
            for low, high in pairwise(sorted({start, end, *between})):
                doing = sorted(_at(block.spans[group], low) for group in groups)
                causes[_cause(doing)] += high - low
    if not observed:
        return [], 0.0
    total = sum(causes.values())
    scale = period_cycles / observed
    named = [
        Bubble(cause=cause, cycles=cycles * scale)
        for cause, cycles in causes.most_common()
        if cycles > _SMALL_BUBBLE * observed
    ]
    rest = total * scale - sum(bubble.cycles for bubble in named)
    if rest > 0.5:
        named.append(Bubble(cause="other", cycles=rest))
    return named, 1 - total / observed


def hidden_arithmetic(launch: Launch, blocks: Sequence[Block]) -> Hidden:
    """How much of the arithmetic the tensor cores work under, in cycles of a trip of one group."""
    groups = issuers(launch)
    total = own = anyone = trips = 0
    for block in blocks:
        all_flights = _Flights(block.flights)
        for group in groups:
            mine = _Flights([flight for flight in block.flights if flight.group == group])
            spans = [s for s in block.spans[group] if s.trip is not None and s.interval.kind == "arithmetic"]
            trips += len({span.trip for span in block.spans[group] if span.trip is not None})
            for span in spans:
                total += span.cycles
                own += sum(end - start for start, end in union(mine.near(span), span.start, span.end))
                anyone += sum(end - start for start, end in union(all_flights.near(span), span.start, span.end))
    trips = max(trips, 1)
    return Hidden(cycles=total / trips, under_own_mmas=own / trips, under_any_mmas=anyone / trips)


class _Flights:
    """Flights in the order of their start."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        self._flights = sorted(flights, key=lambda flight: flight.start)
        self._starts = [flight.start for flight in self._flights]
        self._longest = max((flight.end - flight.start for flight in flights), default=0)

    def near(self, span: Span) -> list[Flight]:
        """All that can overlap with the span."""
        low, high = (bisect_left(self._starts, cycle) for cycle in (span.start - self._longest, span.end))
        return self._flights[low:high]


def _at(spans: list[Span], cycle: int) -> str:
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle].end <= cycle:
            low = middle + 1
        else:
            high = middle
    return spans[low].interval.name if low < len(spans) and spans[low].start <= cycle else "done"


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


def issued_loads(block: Block) -> dict[Value, list[tuple[int, str, str]]]:
    """Ring of full barriers -> (cycle of issue, group, buffer) of the loads into it, in order.

    What is loaded in a recorded region was issued just before its end, else just after the gap's start.
    """
    loads: dict[Value, list[tuple[int, str, str]]] = defaultdict(list)
    for group, spans in block.spans.items():
        for span in spans:
            for buffer, ring in span.interval.loads:
                loads[ring].append((span.end if span.interval.kind == "wait" else span.start, group, buffer))
    return loads


def waits(block: Block) -> Iterator[tuple[str, int, Value, int]]:
    """(group, index of the span, ring, number) of every wait: the number counts the group's waits for that ring."""
    for group, spans in block.spans.items():
        counts: Counter[Value] = Counter()
        for index, span in enumerate(spans):
            for ring in span.interval.waits:
                yield group, index, ring, counts[ring]
                counts[ring] += 1


def loads(block: Block) -> list[Load]:
    """Every load of a block that a warp group waited for."""
    issued = issued_loads(block)
    used: dict[tuple[Value, int], Load] = {}
    for group, index, ring, number in waits(block):
        if number < len(issued.get(ring, ())):
            cycle, loader, buffer = issued[ring][number]
            end = block.spans[group][index].end
            if cycle < end and ((ring, number) not in used or end < used[ring, number].end):
                used[ring, number] = Load(buffer, loader, cycle, end)
    return sorted(used.values(), key=lambda load: load.start)


def releases(block: Block, program: Program) -> dict[tuple[str, int], Release]:
    """(group, index of its span) -> what the end of that wait hangs on in another warp group.

    The n-th wait for a full stage on the n-th load into the ring, be it late or not: when it arrived is not recorded.
    The n-th wait for an empty stage on the (n - stages)-th arrive of the group that came last, if that came later than
    the wait began.
    """
    issued = issued_loads(block)
    signals: dict[Value, dict[str, list[Span]]] = defaultdict(lambda: defaultdict(list))
    for group, spans in block.spans.items():
        for span in spans:
            for ring in span.interval.signals:
                signals[ring][group].append(span)
    found = {}
    for group, index, ring, number in waits(block):
        span = block.spans[group][index]
        if span.interval.kind != "wait":
            continue
        if ring in issued:
            release = _load_release(issued[ring], number, group)
        else:
            release = _signal_release(signals[ring], number - program.stages.get(ring, 1), span)
        if release is not None and release.cycle <= span.end:
            found[group, index] = release
    return found


def signalled(span: Span) -> int:
    """When a span's signals are sent: in a recorded region or after the issue of products at its end, else at once."""
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
    last, group = max(sent, key=lambda found: (signalled(found[0]), found[1]))
    if signalled(last) <= wait.start or last.start > wait.end:
        return None
    return Release(group, min(signalled(last), wait.end), None)  # the record behind a signal may be later than the wait


def windows(block: Block, groups: Sequence[str]) -> list[Window]:
    """What to draw of a block: WINDOW_TRIPS of the first of `groups` from its middle; of several tiles also an end."""
    tiles = block.tiles(groups[0])
    edges = [start - block.start for tile in tiles for start in tile]
    if not edges:
        return []
    bars, edges = bars_of(block), [*edges, block.end - block.start]
    found = [_window("iterations", bars, edges[(len(edges) - 1) // 2 :])]
    if len(tiles) > 1:
        found.append(_window("tile boundary", bars, edges[len(tiles[0]) - 1 :]))
    return found


def _window(shows: Literal["iterations", "tile boundary"], bars: list[Bar], edges: list[int]) -> Window:
    low, *_, high = edges[: WINDOW_TRIPS + 1]
    inside = [bar for bar in bars if bar.start < high and bar.start + bar.cycles > low]
    return Window(shows=shows, start=low, bars=inside)


def kinds_of(interval: Interval) -> list[IntervalKind]:
    """The kinds of work of an interval that does more than one; signals take no time."""
    kinds = list(dict.fromkeys(part.kind for part in interval.parts if part.kind not in ("signal", "other")))
    return kinds if len(kinds) > 1 else []


def bars_of(block: Block) -> list[Bar]:
    """All of a block, its cycles counted from its first record."""
    first = block.start
    bars = [
        Bar(
            track="warps",
            warp_group=group,
            name=span.interval.name,
            kind=span.interval.kind,
            start=span.start - first,
            cycles=span.cycles,
            iteration=span.trip,
            parts=kinds_of(span.interval),
        )
        for group, spans in block.spans.items()
        for span in spans
        if span.cycles > 0
    ]
    bars += [
        Bar(
            track="MMAs",
            warp_group=flight.group,
            name=flight.product,
            kind="tensor",
            start=flight.start - first,
            cycles=flight.end - flight.start,
            iteration=flight.trip,
        )
        for flight in block.flights
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
        for load in loads(block)
    ]
