"""Replay the CTAs of an SM: the dependency graph of their steps, with other durations.

The graph is that of the events. A warp group does its steps in order. A step that waits for a full stage hangs on the
load that fills it, which takes `load_cycles` from its issue; one that waits for an empty stage or at a named barrier,
on the arrives of every group that arrives there, or of the tensor core when the group's MMAs are done. All this is
within a CTA. MMAs of all warp groups of all CTAs go through the tensor cores' queue, one after another, each for its
operations at the peak rate: a step that issues one ends after the queue has taken it up (but for tcgen05's, of which it
holds several), one that waits for it after it is done. What a step takes beyond the last of what it hangs on is its
*self time*. A CTA that came in the place of another one begins as long after that one's end as it did.
"""

import heapq
from bisect import bisect_right
from collections import Counter, defaultdict, deque
from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count, pairwise
from math import inf
from typing import NamedTuple

from kperf.ir.sources import Value
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
class Course:
    """What a warp group of a CTA does: its steps, and the cycle at which the first of them begins.

    `known`: so many first steps end when they did, for they are what came before. `past`: what it did before these.
    """

    steps: Sequence[Step]
    start: float
    known: int = 0
    past: Sequence[Interval] = ()


@dataclass(frozen=True)
class Assumptions:
    """What no event says: cycles of a load from issue to arrival, operations of an SM's tensor cores in a cycle."""

    load_cycles: float
    flop_per_cycle: float


@dataclass(frozen=True)
class Change:
    """What takes no time in any CTA: regions (warp group, name) with what they wait for, MMAs, loads of buffers."""

    regions: frozenset[tuple[str, str]] = frozenset()
    mmas: frozenset[str] = frozenset()
    loads: frozenset[str] = frozenset()


UNCHANGED = Change()

Row = tuple[int, str]
"""A CTA, by its place among those that share the SM, and a warp group of it."""

Times = dict[Row, list[float]]
"""Of the steps of each row, in their order."""


class _TensorCores:
    """Those of an SM: a queue of MMAs, worked on one after another."""

    def __init__(self, flop_per_cycle: float, free: frozenset[str]) -> None:
        """`free`: MMAs that take no time."""
        self._flop_per_cycle, self._free = flop_per_cycle, free
        self._idle_from = -inf

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


class _Effects(NamedTuple):
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
    effects: _Effects | None


_Walk = Generator[tuple[float, int | None], None, None]
"""A warp group's way through its steps. It stops before a step that others may see, with the step's start; and before
one that waits for what has not been sent yet, with the sender besides."""

_ENDED = (0.0, -1)
"""What a way through all steps waits for."""

_Ready = tuple[float, Row, _Walk]
"""When a row's next step begins, the row, its way."""


class Replay:
    """The steps of the CTAs that share an SM, and what each hangs on. All times are cycles."""

    def __init__(
        self,
        courses: Mapping[Row, Course],
        stages: Mapping[Value, int],
        places: Mapping[int, int] | None = None,
        cut: Collection[int] = (),
    ) -> None:
        """`stages`: waits for a stage ring that end before anyone arrives. `places`: CTA -> the one that it came after.

        `cut`: CTAs that go on, or are followed, by more than is here.
        """
        self.steps = steps = {row: course.steps for row, course in courses.items()}
        self.known = {row: course.known for row, course in courses.items()}
        self._courses, self._places, self._cut = courses, places or {}, cut
        intervals = {row: {id(step.interval): step.interval for step in own_steps} for row, own_steps in steps.items()}
        together = [(row, interval) for row, own_steps in intervals.items() for interval in own_steps.values()]
        senders: dict[tuple[int, Value], dict[str, int]] = defaultdict(dict)
        numbers, counters = count(), count()
        for (cta, _), interval in together:
            for _, stage_ring in interval.loads:
                senders[cta, stage_ring] = senders[cta, stage_ring] or {"": next(numbers)}
        loaded = set(senders)
        for (cta, group), interval in together:
            for ring in ((cta, stage_ring) for stage_ring in (*interval.signals, *interval.arrives)):
                if ring not in loaded and group not in senders[ring]:
                    senders[ring][group] = next(numbers)
        counted: dict[tuple[Row, Value], int] = defaultdict(lambda: next(counters))

        def sent(row: Row, stage_rings: Iterable[Value]) -> tuple[int, ...]:
            cta, group = row
            return tuple(senders[cta, ring][group] for ring in stage_rings if (cta, ring) not in loaded)

        def plan(number: int, row: Row, interval: Interval) -> _Plan:
            cta, _ = row
            waits = (
                (
                    counted[row, stage_ring],
                    0 if (cta, stage_ring) in loaded else stages.get(stage_ring, 1),
                    tuple(senders[cta, stage_ring].values()),
                )
                for stage_ring in interval.waits
            )
            sends, arrives = sent(row, interval.signals), sent(row, interval.arrives)
            loads = tuple((buffer, senders[cta, stage_ring][""]) for buffer, stage_ring in interval.loads)
            effects = _Effects(
                sends,
                arrives,
                loads,
                wakes=(*sends, *arrives, *(stage_ring for _, stage_ring in loads)),
                sends_at_end=interval.kind in ("tensor", "wait", "issue"),
                loads_at_end=interval.kind == "wait",
            )
            return _Plan(
                number, tuple(waits), interval.queue, effects if sends or arrives or loads or interval.issues else None
            )

        plans = {(row, id(interval)): plan(number, row, interval) for number, (row, interval) in enumerate(together)}
        self._regions = [(group, interval.name) for (_, group), interval in together]
        self._planned = {row: [plans[row, id(step.interval)] for step in own_steps] for row, own_steps in steps.items()}
        self.cycles: Times = {row: [step.cycles for step in own_steps] for row, own_steps in steps.items()}
        self._iterations = {row: _steady_iterations(own_steps) for row, own_steps in steps.items()}
        self._ending = {row: next(numbers) for row in steps}
        past = [(row, interval) for row, course in courses.items() for interval in course.past]
        self._waited = Counter(counted[row, ring] for row, interval in past for ring in interval.waits)
        self._sent = Counter(
            senders[cta, ring].get("" if (cta, ring) in loaded else group)
            for (cta, group), interval in past
            for ring in (*interval.signals, *interval.arrives, *(ring for _, ring in interval.loads))
        )
        self._counters, self._senders = next(counters), next(numbers)

    def run(self, assumed: Assumptions, self_times: Mapping[Row, Sequence[float]], change: Change = UNCHANGED) -> Times:
        """When each step ends that has these self times; a row that waits for what never comes stops there."""
        return self._run(assumed, self_times, change, measured=False)[0]

    def as_measured(self, assumed: Assumptions) -> tuple[Times, Times]:
        """When each step ends if all take what was measured, and what of it is self time."""
        return self._run(assumed, self.cycles, UNCHANGED, measured=True)

    def _run(
        self, assumed: Assumptions, cycles: Mapping[Row, Sequence[float]], change: Change, *, measured: bool
    ) -> tuple[Times, Times]:
        """`cycles`: self times, or where they are `measured` all of a step.

        Steps begin in the order of time, so that MMAs queue in the order of their issue. What-if savings run
        millions of steps: what does not change with the durations was looked up before, and no other row's step comes
        between those that nobody sees.
        """
        ends: Times = {row: [] for row in self.steps}
        self_times: Times = {row: [] for row in self.steps}
        times = [[-inf] * self._sent[sender] for sender in range(self._senders)]  # of arrivals, by who sends them
        waited = [self._waited[counter] for counter in range(self._counters)]
        cores = _TensorCores(assumed.flop_per_cycle, change.mmas)
        takes_no_time = {number for number, region in enumerate(self._regions) if region in change.regions}
        load_cycles, unloaded = assumed.load_cycles, change.loads
        parked: dict[int, list[_Ready]] = {}
        woken: list[_Ready] = []

        def wake(senders: Iterable[int]) -> None:
            if parked:
                for sender in senders:
                    woken.extend(parked.pop(sender, ()))

        def show(effects: _Effects, begun: float, ended: float, done: float) -> None:
            for buffer, stage_ring in effects.loads:
                issued = ended if effects.loads_at_end else begun
                times[stage_ring].append(issued if buffer in unloaded else issued + load_cycles)
            for sender in effects.sends:
                times[sender].append(ended if effects.sends_at_end else begun)
            for sender in effects.arrives:
                times[sender].append(done)
            wake(effects.wakes)

        def walk(row: Row, start: float) -> _Walk:
            in_flight: deque[float] = deque()
            ended, beyond, work = ends[row].append, self_times[row].append, partial(cores.work, in_flight)
            start = yield from self._begins(row, start, times)
            planned = zip(self._planned[row], cycles[row], count(-self.known[row]), strict=False)
            for (region, waits, queue, effects), taken, number in planned:
                if effects:
                    yield start, None
                begun = hangs_on = start
                free = number >= 0 and region in takes_no_time
                for counter, first, senders in waits:
                    nth = waited[counter] - first
                    waited[counter] += 1
                    if nth < 0 or number < 0 or free:
                        continue
                    for sender in senders:
                        while len(sent := times[sender]) <= nth:
                            yield start, sender
                        if (arrived := sent[nth]) > hangs_on:
                            hangs_on = arrived
                if queue:
                    hangs_on = work(queue, hangs_on)
                self_time = start + taken - hangs_on if measured or number < 0 else taken
                beyond(self_time)
                if not free and (end := hangs_on + self_time) > start:
                    start = end
                ended(start)
                if effects:
                    show(effects, begun, start, in_flight[-1] if in_flight else begun)
            times[self._ending[row]].append(start)
            wake([self._ending[row]])

        _in_order([(of.start, row, walk(row, of.start)) for row, of in self._courses.items()], parked, woken)
        return ends, self_times

    def _begins(
        self, row: Row, measured: float, times: Sequence[Sequence[float]]
    ) -> Generator[tuple[float, int | None], None, float]:
        """When a row begins: as long after the end of the CTA in whose place its CTA came as was measured."""
        before = [other for other in self.steps if other[0] == self._places.get(row[0])]
        for sender in (self._ending[other] for other in before):
            while not times[sender]:
                yield measured, sender
        if not before:
            return measured
        ended = max(times[self._ending[other]][0] for other in before)
        return measured + ended - max(self._courses[other].start + sum(self.cycles[other]) for other in before)

    def iteration_times(self, ends: Mapping[Row, Sequence[float]], groups: Collection[str]) -> list[float]:
        """Cycles from iteration to iteration of the groups' main loops, within tiles, from a tile's second one on.

        After the `known` steps, and until the first of these groups of a CTA that is `cut` has no more steps: from then
        on something is missing that was there.
        """
        issuing = {row: own for row, own in ends.items() if row[1] in groups}
        until = min((own[-1] for (cta, _), own in issuing.items() if cta in self._cut and own), default=inf)
        cycles: list[float] = []
        for row, own in issuing.items():
            known, reached = self.known[row], bisect_right(own, until)
            cycles += [own[b - 1] - own[a - 1] for a, b in self._iterations[row] if known <= a and b < reached]
        return cycles


def _in_order(ready: list[_Ready], parked: dict[int, list[_Ready]], woken: list[_Ready]) -> None:
    """Let the warp groups go, always the one whose step begins first, those but that are `parked` by what they miss.

    Who sends it takes them from there and into `woken`.
    """
    heapq.heapify(ready)
    while ready:
        _, row, way = ready[0]
        begins, missing = next(way, _ENDED)
        if missing is None:
            heapq.heapreplace(ready, (begins, row, way))
        else:
            heapq.heappop(ready)
            parked.setdefault(missing, []).append((begins, row, way))
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
