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

from kperf.trace.compiler.dataflow import Value
from kperf.trace.compiler.program import Interval


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

    def work(self, group: str, interval: Interval, issued: float) -> float:
        """Queue what an interval issues, and take what it waits for: when the last of both is taken up or done."""
        reached = issued
        for entry in interval.queue:
            if isinstance(entry, int):
                while len(self._in_flight[group]) > entry:
                    reached = max(reached, self._in_flight[group].popleft())
            else:
                taken = max(issued, self._idle_from)
                reached = max(reached, taken)
                cycles = 0.0 if entry.name in self._free else entry.flop / self._flop_per_cycle
                self._idle_from = taken + cycles
                self._in_flight[group].append(self._idle_from)
        return reached


@dataclass(frozen=True)
class _Plan:
    """What an interval hangs on and sends, by number: `waits` for (what it counts, the first round, the senders)."""

    waits: tuple[tuple[int, int, tuple[int, ...]], ...]
    sends: tuple[int, ...]
    loads: tuple[tuple[str, int], ...]
    sends_at_end: bool
    loads_at_end: bool


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

        def plan(group: str, interval: Interval) -> _Plan:
            waits = (
                (counted[group, ring], 0 if ring in loaded else stages.get(ring, 1), tuple(senders[ring].values()))
                for ring in interval.waits
            )
            return _Plan(
                tuple(waits),
                tuple(senders[ring][group] for ring in interval.signals if ring not in loaded),
                tuple((buffer, senders[ring][""]) for buffer, ring in interval.loads),
                sends_at_end=interval.kind in ("tensor", "wait", "issue"),
                loads_at_end=interval.kind == "wait",
            )

        plans = {(group, id(interval)): plan(group, interval) for group, interval in together}
        self._plans = {group: [plans[group, id(step.interval)] for step in mine] for group, mine in steps.items()}
        self._counters, self._senders = next(counters), next(numbers)

    def run(self, assumed: Assumptions, own: Own, change: Change = UNCHANGED) -> dict[str, list[float]]:
        """When each step ends, in the order of each group; a group that waits for what never comes stops there.

        Steps begin in the order of time, so that products queue in the order of their issue.
        """
        ends: dict[str, list[float]] = {group: [] for group in self.steps}
        times: list[list[float]] = [[] for _ in range(self._senders)]  # of arrivals, by who sends them to which ring
        waited = [0] * self._counters
        cores = _TensorCores(assumed.flop_per_cycle, change.products)
        parked: dict[int, list[str]] = defaultdict(list)
        ready = [(start, group) for group, start in self.starts.items()]
        heapq.heapify(ready)
        while ready:
            start, group = heapq.heappop(ready)
            mine = ends[group]
            if len(mine) == len(self.steps[group]):
                continue
            step, plan = self.steps[group][len(mine)], self._plans[group][len(mine)]
            interval = step.interval
            free = bool(change.regions) and (group, interval.name) in change.regions
            released, missing = (start, None) if free else _released(plan, start, waited, times)
            if missing is not None:
                parked[missing].append(group)
                continue
            for counter, _, _ in plan.waits:
                waited[counter] += 1
            hangs_on = cores.work(group, interval, released) if interval.queue else released
            end = start if free else max(start, hangs_on + own(group, step, start, hangs_on))
            mine.append(end)
            heapq.heappush(ready, (end, group))
            for buffer, ring in plan.loads:
                issued = end if plan.loads_at_end else start
                times[ring].append(issued + (0.0 if buffer in change.loads else assumed.load_cycles))
            for sender in plan.sends:
                times[sender].append(end if plan.sends_at_end else start)
            if parked:
                for sender in (*plan.sends, *(ring for _, ring in plan.loads)):
                    for other in parked.pop(sender, ()):
                        heapq.heappush(ready, (ends[other][-1] if ends[other] else self.starts[other], other))
        return ends

    def periods(self, ends: Mapping[str, Sequence[float]], groups: Sequence[str]) -> list[float]:
        """Cycles from trip to trip of the groups' main loops, within tiles, from each tile's second trip on."""
        found = []
        for group in groups:
            starts: dict[tuple[int, int], float] = {}
            begin = self.starts[group]
            for step, end in zip(self.steps[group], ends[group], strict=False):
                if step.trip is not None:
                    starts.setdefault((step.tile, step.trip), begin)
                begin = end
            steady = {b for a, b in pairwise(starts) if a[0] == b[0]}
            found += [starts[b] - starts[a] for a, b in pairwise(starts) if {a, b} <= steady]
        return found


def _released(
    plan: _Plan, start: float, waited: Sequence[int], times: Sequence[Sequence[float]]
) -> tuple[float, int | None]:
    """When all is there that an interval waits for, not before its start; and who has not sent it yet, if so."""
    released = start
    for counter, first, senders in plan.waits:
        number = waited[counter] - first
        for sender in senders if number >= 0 else ():
            if number >= len(times[sender]):
                return start, sender
            released = max(released, times[sender][number])
    return released, None
