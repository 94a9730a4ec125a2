"""Replay a CTA: the dependency graph of its steps, with other durations.

The graph is that of the records. A warp group does its steps in order. A step that waits for a full stage hangs on the
load that fills it, which takes `load_cycles` from its issue; one that waits for an empty stage or at a named barrier,
on the arrives of every group that arrives there, or of the tensor core when the group's MMAs are done. MMAs of all
warp groups go through the tensor cores' queue, one after another, each for its operations at the peak rate: a step that
issues one ends after the queue has taken it up (but for tcgen05's, of which it holds several), one that waits for it
after it is done. What a step takes beyond the last of what it hangs on is its *self time*.
"""

import heapq
from collections import defaultdict, deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from typing import NamedTuple

from kperf.ir.dataflow import Value
from kperf.trace.instrument.program import Interval, Mma


@dataclass(frozen=True)
class Step:
    """One interval to be run, with the cycles that it took where it was measured.

    `iteration` counts the iterations of the main loop, within `tile`; None outside of it. `steady`: in an iteration
    after the tile's first, which waits for what was not under way yet.
    """

    interval: Interval
    cycles: float
    iteration: int | None
    tile: int
    steady: bool = False


@dataclass(frozen=True)
class Assumptions:
    """What no record says: cycles of a load from issue to arrival, operations of an SM's tensor cores in a cycle."""

    load_cycles: float
    flop_per_cycle: float


@dataclass(frozen=True)
class Change:
    """What takes no time: regions of warp groups (group, name) with what they wait for, MMAs, loads of buffers."""

    regions: frozenset[tuple[str, str]] = frozenset()
    mmas: frozenset[str] = frozenset()
    loads: frozenset[str] = frozenset()


UNCHANGED = Change()

Times = dict[str, list[float]]
"""Of the steps of each warp group, in their order."""


class _TensorCores:
    """Those of an SM: a queue of MMAs, worked on one after another."""

    def __init__(self, flop_per_cycle: float, free: frozenset[str]) -> None:
        """`free`: MMAs that take no time."""
        self._flop_per_cycle, self._free = flop_per_cycle, free
        self._idle_from = 0.0

    def work(self, in_flight: deque[float], queue: Sequence[Mma | int], issued: float) -> float:
        """Queue what an interval issues, and take what it waits for: when the last of both is taken up or done.

        `in_flight`: when the MMAs of its warp group are done that nobody has waited for yet.
        """
        reached = issued
        for entry in queue:
            if isinstance(entry, int):
                while len(in_flight) > entry:
                    if (done := in_flight.popleft()) > reached:
                        reached = done
            else:
                if (taken := self._idle_from) < issued:
                    taken = issued
                if entry.instruction != "tcgen05":  # it takes up more than one
                    reached = max(reached, taken)
                cycles = 0.0 if entry.name in self._free else entry.flop / self._flop_per_cycle
                self._idle_from = taken + cycles
                in_flight.append(self._idle_from)
        return reached


_Waits = tuple[tuple[int, int, tuple[int, ...]], ...]
"""For each stage ring: what counts the waits for it, the first round that has to come, and the senders, by number."""


class _Seen(NamedTuple):
    """What others see of an interval. `arrives`: what the tensor core sends when the group's MMAs so far are done.
    `wakes`: whose sending others may wait for."""

    sends: tuple[int, ...]
    arrives: tuple[int, ...]
    loads: tuple[tuple[str, int], ...]
    wakes: tuple[int, ...]
    sends_at_end: bool
    loads_at_end: bool


class _Plan(NamedTuple):
    """What an interval hangs on, and what others see of it, if they do. `region`: its number."""

    region: int
    waits: _Waits
    queue: Sequence[Mma | int]
    seen: _Seen | None


_Walk = Generator[tuple[float, int | None], None, None]
"""A warp group's way through its steps. It stops before a step that others may see, with the step's start; and before
one that waits for what has not been sent yet, with the sender besides."""

_ENDED = (0.0, -1)
"""What a way through all steps waits for."""

_Ready = tuple[float, str, _Walk]
"""When a warp group's next step begins, the group, its way."""


class Replay:
    """One CTA's steps, and what each hangs on. All times are cycles."""

    def __init__(
        self, steps: Mapping[str, Sequence[Step]], starts: Mapping[str, float], stages: Mapping[Value, int]
    ) -> None:
        """`starts`: when each warp group begins. `stages`: waits for a stage ring that end before anyone arrives."""
        self.steps, self.starts = steps, starts
        intervals = {group: {id(step.interval): step.interval for step in mine} for group, mine in steps.items()}
        together = [(group, interval) for group, mine in intervals.items() for interval in mine.values()]
        senders: dict[Value, dict[str, int]] = defaultdict(dict)
        numbers, counters = count(), count()
        for _, interval in together:
            for _, stage_ring in interval.loads:
                senders[stage_ring] = senders[stage_ring] or {"": next(numbers)}
        loaded = set(senders)
        for group, interval in together:
            for stage_ring in (*interval.signals, *interval.arrives):
                if stage_ring not in loaded and group not in senders[stage_ring]:
                    senders[stage_ring][group] = next(numbers)
        counted: dict[tuple[str, Value], int] = defaultdict(lambda: next(counters))

        def plan(number: int, group: str, interval: Interval) -> _Plan:
            waits = (
                (
                    counted[group, stage_ring],
                    0 if stage_ring in loaded else stages.get(stage_ring, 1),
                    tuple(senders[stage_ring].values()),
                )
                for stage_ring in interval.waits
            )
            sends = tuple(senders[stage_ring][group] for stage_ring in interval.signals if stage_ring not in loaded)
            arrives = tuple(senders[stage_ring][group] for stage_ring in interval.arrives if stage_ring not in loaded)
            loads = tuple((buffer, senders[stage_ring][""]) for buffer, stage_ring in interval.loads)
            seen = _Seen(
                sends,
                arrives,
                loads,
                wakes=(*sends, *arrives, *(stage_ring for _, stage_ring in loads)),
                sends_at_end=interval.kind in ("tensor", "wait", "issue"),
                loads_at_end=interval.kind == "wait",
            )
            return _Plan(
                number, tuple(waits), interval.queue, seen if sends or arrives or loads or interval.issues else None
            )

        plans = {
            (group, id(interval)): plan(number, group, interval) for number, (group, interval) in enumerate(together)
        }
        self._regions = [(group, interval.name) for group, interval in together]
        self._planned = {group: [plans[group, id(step.interval)] for step in mine] for group, mine in steps.items()}
        self.cycles: Times = {group: [step.cycles for step in mine] for group, mine in steps.items()}
        self._iterations = {group: _steady_iterations(mine) for group, mine in steps.items()}
        self._counters, self._senders = next(counters), next(numbers)

    def run(self, assumed: Assumptions, self_times: Mapping[str, Sequence[float]], change: Change = UNCHANGED) -> Times:
        """When each step ends that has these self times; a group that waits for what never comes stops there."""
        return self._run(assumed, self_times, change, measured=False)[0]

    def as_measured(self, assumed: Assumptions) -> tuple[Times, Times]:
        """When each step ends if all take what was measured, and what of it is self time."""
        return self._run(assumed, self.cycles, UNCHANGED, measured=True)

    def _run(
        self, assumed: Assumptions, cycles: Mapping[str, Sequence[float]], change: Change, *, measured: bool
    ) -> tuple[Times, Times]:
        """`cycles`: self times, or where they are `measured` all of a step.

        Steps begin in the order of time, so that MMAs queue in the order of their issue. What-if savings run
        millions of steps: what does not change with the durations was looked up before, and no other group's step comes
        between those that nobody sees.
        """
        ends: Times = {group: [] for group in self.steps}
        self_times: Times = {group: [] for group in self.steps}
        times: list[list[float]] = [
            [] for _ in range(self._senders)
        ]  # of arrivals, by who sends them to which stage ring
        waited = [0] * self._counters
        cores = _TensorCores(assumed.flop_per_cycle, change.mmas)
        takes_no_time = {number for number, region in enumerate(self._regions) if region in change.regions}
        load_cycles, unloaded = assumed.load_cycles, change.loads
        parked: dict[int, list[_Ready]] = {}
        woken: list[_Ready] = []

        def show(seen: _Seen, begun: float, ended: float, done: float) -> None:
            for buffer, stage_ring in seen.loads:
                issued = ended if seen.loads_at_end else begun
                times[stage_ring].append(issued if buffer in unloaded else issued + load_cycles)
            for sender in seen.sends:
                times[sender].append(ended if seen.sends_at_end else begun)
            for sender in seen.arrives:
                times[sender].append(done)
            if parked:
                for sender in seen.wakes:
                    woken.extend(parked.pop(sender, ()))

        def walk(group: str, start: float) -> _Walk:
            in_flight: deque[float] = deque()
            ended, beyond, work = ends[group].append, self_times[group].append, partial(cores.work, in_flight)
            for (region, waits, queue, seen), taken in zip(self._planned[group], cycles[group], strict=True):
                if seen:
                    yield start, None
                begun = hangs_on = start
                free = region in takes_no_time
                for counter, first, senders in waits:
                    number = waited[counter] - first
                    waited[counter] += 1
                    if number < 0 or free:
                        continue
                    for sender in senders:
                        while len(sent := times[sender]) <= number:
                            yield start, sender
                        if (arrived := sent[number]) > hangs_on:
                            hangs_on = arrived
                if queue:
                    hangs_on = work(queue, hangs_on)
                mine = start + taken - hangs_on if measured else taken
                beyond(mine)
                if not free and (end := hangs_on + mine) > start:
                    start = end
                ended(start)
                if seen:
                    show(seen, begun, start, in_flight[-1] if in_flight else begun)

        _in_order([(start, group, walk(group, start)) for group, start in self.starts.items()], parked, woken)
        return ends, self_times

    def iteration_times(self, ends: Mapping[str, Sequence[float]], groups: Sequence[str]) -> list[float]:
        """Cycles from iteration to iteration of the groups' main loops, within tiles, from a tile's second one on."""
        found: list[float] = []
        for group in groups:
            starts = [self.starts[group], *ends[group]]
            reached = len(ends[group])
            found += [starts[b] - starts[a] for a, b in self._iterations[group] if b < reached]
        return found


def _in_order(ready: list[_Ready], parked: dict[int, list[_Ready]], woken: list[_Ready]) -> None:
    """Let the warp groups go, always the one whose step begins first, those but that are `parked` by what they miss.

    Who sends it takes them from there and into `woken`.
    """
    heapq.heapify(ready)
    while ready:
        _, group, way = ready[0]
        begins, missing = next(way, _ENDED)
        if missing is None:
            heapq.heapreplace(ready, (begins, group, way))
        else:
            heapq.heappop(ready)
            parked.setdefault(missing, []).append((begins, group, way))
        while woken:
            heapq.heappush(ready, woken.pop())


def _steady_iterations(steps: Sequence[Step]) -> list[tuple[int, int]]:
    """From which step to which each iteration goes, of those after a tile's first that another one follows."""
    first: dict[tuple[int, int], int] = {}
    for place, step in enumerate(steps):
        if step.iteration is not None:
            first.setdefault((step.tile, step.iteration), place)
    steady = {b for a, b in pairwise(first) if a[0] == b[0]}
    return [(first[a], first[b]) for a, b in pairwise(first) if {a, b} <= steady]
