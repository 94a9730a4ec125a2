"""Run a block again by what its steps hang on, with other durations.

The graph is that of the records. A warp group does its steps in order. A step that waits for a full stage hangs on the
load that fills it, which takes `load_cycles` from its issue; one that waits for an empty stage or at a named barrier,
on the arrives of every group that arrives there. Products of all warp groups go through the tensor cores' queue, one
after another, each for its operations at the peak rate: a step that issues one ends after the queue has taken it up, a
step that waits for one after it is done. What a step takes beyond the last of what it hangs on are its *own* cycles.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kperf.trace.compiler.dataflow import Value
from kperf.trace.compiler.program import Interval


@dataclass(frozen=True)
class Step:
    """One interval to be run, with the cycles that it took where it was measured.

    `trip` counts the trips of the main loop, within `tile`; None outside of it.
    """

    interval: Interval
    cycles: float
    trip: int | None
    tile: int


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


class Replay:
    """One block's steps, and what each hangs on. All times are cycles."""

    def __init__(
        self, steps: Mapping[str, Sequence[Step]], starts: Mapping[str, float], stages: Mapping[Value, int]
    ) -> None:
        """`starts`: when each warp group begins. `stages`: waits for a ring that are over before anyone arrives."""
        self.steps, self.starts, self._stages = steps, starts, stages
        self._loaded: set[Value] = set()
        self._signallers: dict[Value, set[str]] = defaultdict(set)
        for group, mine in steps.items():
            for interval in {id(step.interval): step.interval for step in mine}.values():
                self._loaded |= {ring for _, ring in interval.loads}
                for ring in interval.signals:
                    self._signallers[ring].add(group)

    def run(self, assumed: Assumptions, own: Own, change: Change = UNCHANGED) -> dict[str, list[float]]:
        """When each step ends, in the order of each group; a group that waits for what never comes stops there.

        Steps begin in the order of time, so that products queue in the order of their issue.
        """
        ends: dict[str, list[float]] = {group: [] for group in self.steps}
        times: dict[tuple[Value, str], list[float]] = defaultdict(list)  # of arrivals at a ring, by who sends them
        waited: Counter[tuple[str, Value]] = Counter()
        cores = _TensorCores(assumed.flop_per_cycle, change.products)
        parked: dict[Value, list[str]] = defaultdict(list)
        ready = [(start, group) for group, start in self.starts.items()]
        heapq.heapify(ready)
        while ready:
            start, group = heapq.heappop(ready)
            if len(ends[group]) == len(self.steps[group]):
                continue
            step = self.steps[group][len(ends[group])]
            interval = step.interval
            free = (group, interval.name) in change.regions
            released = start
            if not free:
                found = {ring: self._released(ring, waited[group, ring], times) for ring in interval.waits}
                unknown = [ring for ring, cycle in found.items() if cycle is None]
                if unknown:
                    parked[unknown[0]].append(group)
                    continue
                released = max([start, *(cycle for cycle in found.values() if cycle is not None)])
            waited.update((group, ring) for ring in interval.waits)
            hangs_on = cores.work(group, interval, released)
            end = start if free else max(start, hangs_on + own(group, step, start, hangs_on))
            ends[group].append(end)
            heapq.heappush(ready, (end, group))
            for buffer, ring in interval.loads:
                issued = end if interval.kind == "wait" else start
                times[ring, ""].append(issued + (0.0 if buffer in change.loads else assumed.load_cycles))
            for ring in interval.signals:
                times[ring, group].append(end if interval.kind in ("tensor", "wait", "issue") else start)
            for ring in (*interval.signals, *(ring for _, ring in interval.loads)):
                for other in parked.pop(ring, ()):
                    heapq.heappush(ready, (ends[other][-1] if ends[other] else self.starts[other], other))
        return ends

    def _released(self, ring: Value, number: int, times: Mapping[tuple[Value, str], list[float]]) -> float | None:
        """When a group's n-th wait for a ring is released; None if that is not known yet."""
        senders = {""} if ring in self._loaded else self._signallers.get(ring, set())
        number -= 0 if ring in self._loaded else self._stages.get(ring, 1)
        if number < 0 or not senders:
            return 0.0
        sent = [times[ring, sender] for sender in senders]
        return max(mine[number] for mine in sent) if all(number < len(mine) for mine in sent) else None

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
