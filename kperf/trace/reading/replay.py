"""Run a block again by what its steps hang on, with other durations.

The graph is that of the records. A warp group does its steps in order. A step that waits for a full stage hangs on the
load that fills it, which takes `load_cycles` from its issue; one that waits for an empty stage or at a named barrier,
on the arrives of every group that arrives there. Products of all warp groups go through the tensor cores' queue, one
after another, each for its operations at the peak rate: a step that issues one ends after the queue has taken it up, a
step that waits for one after it is done. What a step takes beyond the last of what it hangs on are its *own* cycles.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, pairwise
from typing import NamedTuple

from kperf.trace.compiler.dataflow import Value
from kperf.trace.compiler.program import Interval, Product


@dataclass(frozen=True)
class Step:
    """One interval to be run, with the cycles that it took where it was measured.

    `trip` counts the trips of the main loop, within `tile`; None outside of it. `steady`: in a trip after the tile's
    first, which waits for what was not under way yet.
    """

    interval: Interval
    cycles: float
    trip: int | None
    tile: int
    steady: bool = False


@dataclass(frozen=True)
class Assumptions:
    """What no record says: cycles of a load from issue to arrival, operations of an SM's tensor cores in a cycle."""

    load_cycles: float
    flop_per_cycle: float


@dataclass(frozen=True)
class Change:
    """What takes no time: regions of warp groups (group, name) with what they wait for, products, loads of buffers."""

    regions: frozenset[tuple[str, str]] = frozenset()
    products: frozenset[str] = frozenset()
    loads: frozenset[str] = frozenset()


UNCHANGED = Change()

Own = Callable[[str, Step, float, float], float]
"""(warp group, step, its start, the last of what it hangs on, not before the start) -> own cycles."""


class _TensorCores:
    """Those of an SM: a queue of products, worked on one after another."""

    def __init__(self, flop_per_cycle: float, free: frozenset[str]) -> None:
        """`free`: products that take no time."""
        self._flop_per_cycle, self._free = flop_per_cycle, free
        self._idle_from = 0.0
        self._in_flight: dict[str, deque[float]] = defaultdict(deque)

    def work(self, group: str, queue: Sequence[Product | int], issued: float) -> float:
        """Queue what an interval issues, and take what it waits for: when the last of both is taken up or done."""
        reached, in_flight = issued, self._in_flight[group]
        for entry in queue:
            if isinstance(entry, int):
                while len(in_flight) > entry:
                    if (done := in_flight.popleft()) > reached:
                        reached = done
            else:
                if (taken := self._idle_from) < issued:
                    taken = issued
                reached = max(reached, taken)
                cycles = 0.0 if entry.name in self._free else entry.flop / self._flop_per_cycle
                self._idle_from = taken + cycles
                in_flight.append(self._idle_from)
        return reached


_Waits = tuple[tuple[int, int, tuple[int, ...]], ...]
"""For each ring: what counts the waits for it, the first round that has to come, and the senders, by number."""


class _Plan(NamedTuple):
    """What an interval hangs on and sends. `region`: its number; `wakes`: whose sending others may wait for."""

    region: int
    waits: _Waits
    queue: Sequence[Product | int]
    sends: tuple[int, ...]
    loads: tuple[tuple[str, int], ...]
    wakes: tuple[int, ...]
    sends_at_end: bool
    loads_at_end: bool


_Ready = tuple[float, str, list[float], Sequence[tuple[Step, _Plan]]]
"""When a warp group's next step begins, the group, the ends of its steps so far, and all its steps."""


class Replay:
    """One block's steps, and what each hangs on. All times are cycles."""

    def __init__(
        self, steps: Mapping[str, Sequence[Step]], starts: Mapping[str, float], stages: Mapping[Value, int]
    ) -> None:
        """`starts`: when each warp group begins. `stages`: waits for a ring that are over before anyone arrives."""
        self.steps, self.starts = steps, starts
        intervals = {group: {id(step.interval): step.interval for step in mine} for group, mine in steps.items()}
        together = [(group, interval) for group, mine in intervals.items() for interval in mine.values()]
        senders: dict[Value, dict[str, int]] = defaultdict(dict)
        numbers, counters = count(), count()
        for _, interval in together:
            for _, ring in interval.loads:
                senders[ring] = senders[ring] or {"": next(numbers)}
        loaded = set(senders)
        for group, interval in together:
            for ring in interval.signals:
                if ring not in loaded and group not in senders[ring]:
                    senders[ring][group] = next(numbers)
        counted: dict[tuple[str, Value], int] = defaultdict(lambda: next(counters))

        def plan(number: int, group: str, interval: Interval) -> _Plan:
            waits = (
                (counted[group, ring], 0 if ring in loaded else stages.get(ring, 1), tuple(senders[ring].values()))
                for ring in interval.waits
            )
            sends = tuple(senders[ring][group] for ring in interval.signals if ring not in loaded)
            loads = tuple((buffer, senders[ring][""]) for buffer, ring in interval.loads)
            return _Plan(
                number,
                tuple(waits),
                interval.queue,
                sends,
                loads,
                wakes=(*sends, *(ring for _, ring in loads)),
                sends_at_end=interval.kind in ("tensor", "wait", "issue"),
                loads_at_end=interval.kind == "wait",
            )

        plans = {
            (group, id(interval)): plan(number, group, interval) for number, (group, interval) in enumerate(together)
        }
        self._regions = [(group, interval.name) for group, interval in together]
        self._planned = {
            group: [(step, plans[group, id(step.interval)]) for step in mine] for group, mine in steps.items()
        }
        self._trips = {group: _steady_trips(mine) for group, mine in steps.items()}
        self._counters, self._senders = next(counters), next(numbers)

    def run(self, assumed: Assumptions, own: Own, change: Change = UNCHANGED) -> dict[str, list[float]]:
        """When each step ends, in the order of each group; a group that waits for what never comes stops there.

        Steps begin in the order of time, so that products queue in the order of their issue. Slack runs millions of
        steps: what does not change with the durations was looked up before.
        """
        ends: dict[str, list[float]] = {group: [] for group in self.steps}
        times: list[list[float]] = [[] for _ in range(self._senders)]  # of arrivals, by who sends them to which ring
        waited = [0] * self._counters
        cores = _TensorCores(assumed.flop_per_cycle, change.products)
        takes_no_time = {number for number, region in enumerate(self._regions) if region in change.regions}
        load_cycles, unloaded = assumed.load_cycles, change.loads
        parked: dict[int, list[_Ready]] = {}
        ready: list[_Ready] = [
            (start, group, ends[group], self._planned[group]) for group, start in self.starts.items()
        ]
        heapq.heapify(ready)
        while ready:
            start, group, mine, planned = ready[0]
            if len(mine) == len(planned):
                heapq.heappop(ready)
                continue
            step, (region, waits, queue, sends, loads, wakes, sends_at_end, loads_at_end) = planned[len(mine)]
            free, released = region in takes_no_time, start
            if waits and not free:
                released, missing = _released(waits, start, waited, times)
                if missing is not None:
                    parked.setdefault(missing, []).append(heapq.heappop(ready))
                    continue
            for counter, _, _ in waits:
                waited[counter] += 1
            hangs_on = cores.work(group, queue, released) if queue else released
            end = start if free else max(start, hangs_on + own(group, step, start, hangs_on))
            mine.append(end)
            heapq.heapreplace(ready, (end, group, mine, planned))
            for buffer, ring in loads:
                issued = end if loads_at_end else start
                times[ring].append(issued if buffer in unloaded else issued + load_cycles)
            for sender in sends:
                times[sender].append(end if sends_at_end else start)
            if parked:
                for sender in wakes:
                    for other in parked.pop(sender, ()):
                        heapq.heappush(ready, other)
        return ends

    def periods(self, ends: Mapping[str, Sequence[float]], groups: Sequence[str]) -> list[float]:
        """Cycles from trip to trip of the groups' main loops, within tiles, from each tile's second trip on."""
        found: list[float] = []
        for group in groups:
            starts = [self.starts[group], *ends[group]]
            reached = len(ends[group])
            found += [starts[b] - starts[a] for a, b in self._trips[group] if b < reached]
        return found


def _steady_trips(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """From which step to which each trip goes, of those after a tile's first that another one follows."""
    first: dict[tuple[int, int], int] = {}
    for place, step in enumerate(steps):
        if step.trip is not None:
            first.setdefault((step.tile, step.trip), place)
    steady = {b for a, b in pairwise(first) if a[0] == b[0]}
    return [(first[a], first[b]) for a, b in pairwise(first) if {a, b} <= steady]


def _released(
    waits: _Waits, start: float, waited: Sequence[int], times: Sequence[Sequence[float]]
) -> tuple[float, int | None]:
    """When all is there that an interval waits for, not before its start; and who has not sent it yet, if so."""
    released = start
    for counter, first, senders in waits:
        if (number := waited[counter] - first) < 0:
            continue
        for sender in senders:
            if number >= len(times[sender]):
                return start, sender
            if (sent := times[sender][number]) > released:
                released = sent
    return released, None
