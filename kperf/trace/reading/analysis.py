"""Read a timeline: where the cycles go, what the tensor cores wait for, what the critical path is.

Statistics of regions and periods are over every block of the launch; bubbles and critical path, which follow one block
at a time, are over SAMPLED_BLOCKS blocks spread evenly over it, or fewer where blocks are long.
"""

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.compiler.dataflow import Value
from kperf.trace.compiler.program import Program
from kperf.trace.reading.timeline import Block, Flight, Launch, Span

SAMPLED_BLOCKS = 96
SAMPLED_INTERVALS = 300_000

DENSE_FLOP_PER_CYCLE = 4096
"""bfloat16 and float16 products of one Hopper SM: 989 TFLOPS / (132 SMs * 1.83 GHz)."""

BLOCKED_CYCLES = 150
"""A wait for a load that takes longer was blocked; records around one that is over at once are 70 to 140 apart."""

_SMALL_BUBBLE = 0.01
_FEWEST_TRIPS = 4


@dataclass(frozen=True)
class Quantiles:
    """Cycles."""

    median: float
    p5: float
    p95: float


@dataclass(frozen=True)
class RegionTime:
    """One region of a warp group: cycles each time, and its share of the group's lifetime."""

    warp_group: str
    name: str
    kind: str
    cycles: Quantiles
    share: float
    per_trip: float


@dataclass(frozen=True)
class Bubble:
    """Cycles of a trip in which no wgmma is in flight on the SM, and what the warp groups that issue them do then."""

    cause: str
    cycles_per_iteration: float


@dataclass(frozen=True)
class PathPart:
    """A region's share of the critical path."""

    region: str
    warp_group: str
    share: float


def quantiles(values: NDArray[np.int64]) -> Quantiles:
    """Median, 5th and 95th percentile. Raises `UsageError` when there are none."""
    if values.size == 0:
        raise UsageError("the trace has no trip of a main loop: trace a longer sequence")
    p5, median, p95 = np.percentile(values, [5, 50, 95])
    return Quantiles(float(median), float(p5), float(p95))


def consumers(launch: Launch) -> list[str]:
    """The warp groups that issue matrix products."""
    issuing = {interval.group for interval in launch.intervals if interval.issues}
    return [group for group in launch.groups if group in issuing]


def period(launch: Launch) -> Quantiles:
    """Cycles from trip to trip of the consumers' main loops, over all of them."""
    return quantiles(np.concatenate([launch.periods(group) for group in consumers(launch)] or [np.zeros(0, np.int64)]))


def boundary(launch: Launch, period_cycles: float) -> Quantiles | None:
    """Cycles by which the step from a tile to the next is longer than one from trip to trip; None without such steps.

    The first product of the one tile and the last of the other are computed in them.
    """
    steps = np.concatenate([launch.boundaries(group) for group in consumers(launch)])
    if not steps.size:
        return None
    beyond = quantiles(steps)
    return Quantiles(*(cycles - period_cycles for cycles in (beyond.median, beyond.p5, beyond.p95)))


def region_times(launch: Launch) -> list[RegionTime]:
    """Every region that has a share of its group's lifetime, in the order of the program."""
    of_kind = [np.flatnonzero(launch.kind == kind) for kind in range(len(launch.intervals))]
    result = []
    for group in launch.groups:
        kinds = [kind for kind, interval in enumerate(launch.intervals) if interval.group == group]
        lifetime = sum(int(launch.cycles[of_kind[kind]].sum()) for kind in kinds)
        trips = max(launch.trips(group), 1)
        for name in dict.fromkeys(launch.intervals[kind].name for kind in kinds):
            named = [kind for kind in kinds if launch.intervals[kind].name == name]
            all_of_it = np.concatenate([of_kind[kind] for kind in named])
            if not all_of_it.size:
                continue
            looping = all_of_it[launch.in_loop[all_of_it]]
            typical = launch.cycles[looping if looping.size else all_of_it]
            share = int(launch.cycles[all_of_it].sum()) / lifetime
            per_trip = float(launch.cycles[looping].sum()) / trips
            result.append(RegionTime(group, name, launch.intervals[named[0]].kind, quantiles(typical), share, per_trip))
    return result


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


def exported_window(block: Block, groups: Sequence[str]) -> tuple[int, int]:
    """The cycles of a block that are worth showing: all, or of several tiles the middle one and how the next begins."""
    trips = list(zip(*(block.tiles(group) for group in groups), strict=False))
    if len(trips) < 2:
        return block.start, block.end
    middle, following = trips[(len(trips) - 1) // 2 :][:2]
    return min(starts[0] for starts in middle), max(starts[:_FEWEST_TRIPS][-1] for starts in following)


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
    """What the consumers do while no wgmma is in flight, in cycles of a trip; and the share of time with one."""
    groups = consumers(launch)
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
        Bubble(cause, cycles * scale) for cause, cycles in causes.most_common() if cycles > _SMALL_BUBBLE * observed
    ]
    rest = total * scale - sum(bubble.cycles_per_iteration for bubble in named)
    if rest > 0.5:
        named.append(Bubble("other", rest))
    return named, 1 - total / observed


@dataclass(frozen=True)
class Hidden:
    """Cycles of arithmetic in a trip of a consumer, and those of them under wgmma in flight: its own, or anyone's."""

    cycles: float
    under_own_wgmma: float
    under_any_wgmma: float


def hidden_arithmetic(launch: Launch, blocks: Sequence[Block]) -> Hidden:
    """How much of the softmax the tensor cores work under, in cycles of a trip."""
    groups = consumers(launch)
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
    return Hidden(total / trips, own / trips, anyone / trips) if trips else Hidden(0.0, 0.0, 0.0)


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


def critical_path(launch: Launch, blocks: Sequence[Block]) -> list[PathPart]:
    """Shares of the longest chain of dependent work, walked backwards from the end of each block.

    A warp group depends on itself in order. A wait that was blocked depends on what released it: the n-th wait for a
    full stage on the n-th load into the ring, the n-th wait for an empty stage on the (n - stages)-th arrive of the
    consumer that came last. There the path goes on in the other group; the time between is the load's or the signal's.
    """
    totals: Counter[tuple[str, str]] = Counter()
    for block in blocks:
        _walk_back(block, launch.program, totals)
    whole = sum(totals.values())
    return [PathPart(region, group, cycles / whole) for (group, region), cycles in totals.most_common() if cycles]


@dataclass(frozen=True)
class Release:
    """The moment in another warp group that led to a wait's end, and the load that was under way since, if any."""

    group: str
    cycle: int
    load: str | None


@dataclass(frozen=True)
class Load:
    """A load from its issue to the end of the first wait for it; `blocked` if that wait ended because it arrived."""

    buffer: str
    group: str
    start: int
    end: int
    blocked: bool


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
            span = block.spans[group][index]
            blocked = span.interval.kind == "wait" and span.cycles > BLOCKED_CYCLES
            if cycle < span.end and span.end < used.get((ring, number), Load("", "", 0, span.end + 1, False)).end:
                used[ring, number] = Load(buffer, loader, cycle, span.end, blocked)
    return sorted(used.values(), key=lambda load: load.start)


def releases(block: Block, program: Program) -> dict[tuple[str, int], Release]:
    """(group, index of its span) -> what released that wait, for every wait that was blocked."""
    issued = issued_loads(block)
    signals: dict[Value, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for group, spans in block.spans.items():
        for span in spans:
            for ring in span.interval.signals:
                # What is signalled in a recorded region or after the issue of products is signalled at its end.
                late = span.interval.kind in ("tensor", "wait", "issue")
                signals[ring][group].append(span.end if late else span.start)
    found = {}
    for group, index, ring, number in waits(block):
        span = block.spans[group][index]
        if span.interval.kind != "wait":
            continue
        if ring in issued:
            release = _load_release(issued[ring], number, group)
            blocked = release is not None and span.cycles > BLOCKED_CYCLES
        else:
            release = _signal_release(signals[ring], number - program.stages.get(ring, 1), span.end)
            blocked = release is not None and release.cycle > span.start
        if release is not None and blocked and release.cycle <= span.end:
            found[group, index] = release
    return found


def _load_release(loads: list[tuple[int, str, str]], number: int, waiter: str) -> Release | None:
    if number >= len(loads):
        return None
    cycle, group, buffer = loads[number]
    return Release(group, cycle, f"load {buffer}") if group != waiter else None


def _signal_release(signals: dict[str, list[int]], number: int, waited_until: int) -> Release | None:
    if number < 0:
        return None
    last = [(cycles[number], group) for group, cycles in signals.items() if number < len(cycles)]
    if not last:
        return None
    cycle, group = max(last)
    if cycle > waited_until + BLOCKED_CYCLES:
        return None
    return Release(group, min(cycle, waited_until), None)  # the record behind a signal may be later than the wait's end


def _walk_back(block: Block, program: Program, totals: Counter[tuple[str, str]]) -> None:
    released = releases(block, program)
    group = max(block.spans, key=lambda name: block.spans[name][-1].end)
    cycle = block.spans[group][-1].end
    index = len(block.spans[group]) - 1
    while index >= 0:
        span = block.spans[group][index]
        if span.start >= cycle:
            index -= 1
            continue
        release = released.pop((group, index), None)  # once: two waits that end together must not lead to each other
        if release is not None and release.cycle <= cycle:
            totals[release.group if release.load else group, release.load or span.interval.name] += (
                cycle - release.cycle
            )
            group, cycle = release.group, release.cycle
            index = _last_before(block.spans[group], cycle)
            continue
        totals[group, span.interval.name] += cycle - span.start
        cycle = span.start
        index -= 1


def _last_before(spans: list[Span], cycle: int) -> int:
    """Index of the last span that starts before `cycle`, -1 if none does."""
    low, high = 0, len(spans)
    while low < high:
        middle = (low + high) // 2
        if spans[middle].start < cycle:
            low = middle + 1
        else:
            high = middle
    return low - 1
