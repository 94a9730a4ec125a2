"""What each warp did from event to event: the intervals of a launch, with the wgmma in flight under them."""

from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, starmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.ir.sources import Value
from kperf.trace.analyze.decode import Events
from kperf.trace.instrument.events import LIFETIME
from kperf.trace.instrument.program import Interval, Mma, Program, Scope

LONGEST_CTA = 100_000
"""Spans of a CTA that are followed one by one: thousands of iterations."""

_STRETCH = 1 << 18


@dataclass(frozen=True)
class Span:
    """One interval as it ran: from `start` to `end`, in cycles of its CTA.

    `iteration` counts the iterations of the group's main loop, over all tiles of a persistent CTA; None between them.
    """

    interval: Interval
    start: int
    end: int
    iteration: int | None

    @property
    def cycles(self) -> int:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class InFlight:
    """An MMA from the start of its issue to the end of the wait that completed it, in cycles of its CTA.

    `work`: cycles that it takes at the peak rate.
    """

    name: str
    group: str
    start: int
    end: int
    iteration: int | None
    work: float = 0.0


@dataclass
class Cta:
    """One CTA of the launch: for each warp group its spans in time order, of a long CTA from its beginning."""

    program_id: int
    sm: int
    start_ns: int
    spans: dict[str, list[Span]]
    in_flight: list[InFlight] = field(default_factory=list)

    @property
    def start(self) -> int:
        """The cycle of the first event."""
        return min(spans[0].start for spans in self.spans.values() if spans)

    @property
    def end(self) -> int:
        """The cycle at which the last warp group was done."""
        return max(spans[-1].end for spans in self.spans.values() if spans)

    def tiles(self, group: str) -> list[list[int]]:
        """Of each tile, the cycles at which the group's iterations start, with nothing but the loop between."""
        tiles: list[list[int]] = []
        before: int | None = None
        for span in self.spans[group]:
            if span.iteration is not None and span.iteration != before:
                tiles += [[]] if before is None else []
                tiles[-1].append(span.start)
            before = span.iteration
        return tiles


@dataclass(frozen=True)
class Resident:
    """A CTA on an SM beside others, and by how many cycles its cycle 0 comes after that of the first of them."""

    cta: Cta
    later: int = 0

    @property
    def start(self) -> int:
        """As of the first CTA's clock."""
        return self.cta.start + self.later

    @property
    def end(self) -> int:
        """As of the first CTA's clock."""
        return self.cta.end + self.later

    def in_flight(self) -> list[InFlight]:
        """As of the first CTA's clock."""
        return [replace(mma, start=mma.start + self.later, end=mma.end + self.later) for mma in self.cta.in_flight]


@dataclass(frozen=True)
class Neighbours:
    """CTAs that share an SM: a typical one, and all that are there while it runs.

    `followed`: whether others come to the SM when it has ended.
    """

    residents: list[Resident]
    followed: bool = False

    @classmethod
    def alone(cls, cta: Cta) -> "Neighbours":
        """A CTA by itself."""
        return cls([Resident(cta)])

    @cached_property
    def together(self) -> int:
        """The most that are there at once."""
        starts, ends = (sorted(getattr(resident, limit) for resident in self.residents) for limit in ("start", "end"))
        return max(bisect_right(starts, start) - bisect_right(ends, start) for start in starts)

    @cached_property
    def places(self) -> dict[int, int]:
        """Which of the residents came in the place of which: of those that had ended, the last that was not taken."""
        starts, ends = ([getattr(resident, limit) for resident in self.residents] for limit in ("start", "end"))
        ending = deque(sorted(range(len(ends)), key=ends.__getitem__))
        free: list[int] = []
        places: dict[int, int] = {}
        for number in sorted(range(len(starts)), key=starts.__getitem__):
            while ending and ends[ending[0]] <= starts[number]:
                free.append(ending.popleft())
            if free:
                places[number] = free.pop()
        return places


class Launch:
    """All intervals of a traced launch: what each warp does from each of its events to the next.

    `probes`: the two probes between which each of `intervals` lies. All other arrays are as long as `events.probe`.
    `kind`: index into `intervals` of what begins with an event, or
    `len(intervals)` at a warp's last one. `cycles`: how long that takes, 0 at the last one. Raises `UsageError` if
    events follow each other as the program cannot write them, or if one warp group wrote none at all.
    """

    def __init__(self, events: Events, program: Program, warps: tuple[int, ...]) -> None:
        """Pair consecutive events up."""
        self.events = events
        self.program = program
        groups = {group.first_warp: group.name for group in program.groups}
        self.groups = [groups.get(warp, f"warp {warp}") for warp in warps]
        silent = [self.groups[warp] for warp in np.flatnonzero(events.counts.sum(axis=0) == 0)]
        if silent:
            raise UsageError(
                f"no event of {', '.join(silent)}: was warp {warps[self.groups.index(silent[0])]} recorded?"
            )
        if events.probe.max() >= 2 * len(program.scopes):
            raise UsageError("the trace has a scope that the kernel has not: it is another kernel's")
        self.probes, table = self._intervals_of_each()
        self.kind = self._kinds(table)
        bad = np.flatnonzero(self.kind > len(self.intervals))
        if bad.size:
            names = [program.scopes[events.probe[place] // 2].name for place in (bad[0], bad[0] + 1)]
            cta = events.cta_of(bad[:1])[0]
            raise UsageError(f"the events are not balanced: {names[1]!r} cannot follow {names[0]!r} in CTA {cta}")
        self._built: dict[int, Cta] = {}

    def _intervals_of_each(self) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]]]:
        """Set `intervals`, those of every recorded group; and return the probes (first, second) of each.

        Also the kind for [recorded warp, probe, next probe], `len(intervals) + 1` for what cannot be. Where all warps
        run the same code each recorded one has intervals of its own.
        """
        self.intervals = list(self.program.intervals.values())
        probes = [(2 * a + a_start, 2 * b + b_start) for (a, a_start), (b, b_start) in self.program.intervals]
        place = np.tile(np.arange(len(self.intervals)), (len(self.groups), 1))
        for warp, name in enumerate(self.groups):
            code = self.program.code(name)
            if code == name:
                continue
            for index, interval in enumerate(self.program.intervals.values()):
                if interval.group == code:
                    place[warp, index] = len(self.intervals)
                    self.intervals.append(replace(interval, group=name))
                    probes.append(probes[index])
        size = 2 * len(self.program.scopes)
        table = np.full((len(self.groups), size, size), len(self.intervals) + 1, _smallest(len(self.intervals) + 1))
        for index, (first, second) in enumerate(probes[: len(self.program.intervals)]):
            table[:, first, second] = place[:, index]
        return np.array(probes, dtype=np.int64).reshape(-1, 2), table

    def _kinds(self, table: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """`kind`, a stretch of events at a time: what is made of them stays in a core's caches."""
        events, n = self.events, len(self.events.probe)
        kind = np.empty(n, dtype=table.dtype)
        lasts = events.ends[events.counts.ravel() > 0] - 1
        rows = np.searchsorted(events.ends, np.arange(0, n, _STRETCH), side="right")
        same = bool((table == table[0]).all())
        for low, row in zip(range(0, n, _STRETCH), rows, strict=True):
            probes = events.probe[low : low + _STRETCH + 1].astype(np.int64)
            pairs = probes[:-1] * table.shape[1] + probes[1:]
            if not same:
                until = int(np.searchsorted(events.ends, low + len(pairs), side="left")) + 1
                edges = np.clip(np.concatenate([[low], events.ends[row:until]]), low, low + len(pairs))
                warp = np.arange(row, row + len(edges) - 1) % len(self.groups)
                pairs += np.repeat(warp * (table.shape[1] * table.shape[2]), np.diff(edges))
            np.take(table, pairs, out=kind[low : low + len(pairs)], mode="clip")
        kind[lasts] = len(self.intervals)
        return kind

    @cached_property
    def cycles(self) -> NDArray[np.int64]:
        """How long each interval took."""
        cycles = np.diff(self.events.cycle, append=0)
        cycles[self.events.ends[self.events.counts.ravel() > 0] - 1] = 0
        return cycles

    @cached_property
    def cycles_of(self) -> list[NDArray[np.int64]]:
        """For each of `intervals`: how long it took, each time that it ran."""
        size = len(self.intervals) + 1  # the last stands for what no interval begins with
        by_kind = np.empty(len(self.kind), dtype=np.int64)
        edges = np.cumsum(np.bincount(self.kind, minlength=size))
        free = np.concatenate([[0], edges[:-1]])
        for low in range(0, len(self.kind), _STRETCH):
            kind = self.kind[low : low + _STRETCH]
            cycles = np.diff(self.events.cycle[low : low + _STRETCH + 1])
            order = np.argsort(kind[: len(cycles)], kind="stable")  # of small integers: a radix sort
            counts = np.bincount(kind[: len(cycles)], minlength=size)
            for number, part in enumerate(np.split(cycles[order], np.cumsum(counts)[:-1])):
                by_kind[free[number] : free[number] + len(part)] = part
            free += counts
        return np.split(by_kind, edges[:-1])[: len(self.intervals)]

    @cached_property
    def ran(self) -> NDArray[np.int64]:
        """For each of `intervals`: how often it ran."""
        return np.array([len(cycles) for cycles in self.cycles_of], dtype=np.int64)

    @cached_property
    def spent(self) -> NDArray[np.int64]:
        """For each of `intervals`: all the cycles that it took."""
        return np.array([cycles.sum() for cycles in self.cycles_of], dtype=np.int64)

    def places(self, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Where intervals of some kinds begin, in ascending order; `chosen` has an entry for each of `intervals`."""
        return np.flatnonzero(np.append(chosen, False)[self.kind])

    @cached_property
    def main_scope(self) -> dict[str, int | None]:
        """Group -> number of the scope that opens an iteration of its main loop, None without a loop.

        The main loop is the one with the most iterations of those that issue MMAs, else of those that load.
        """
        chosen: dict[str, int | None] = {}
        for name in self.groups:
            scopes = [scope for scope in self.program.scopes if scope.group == self.program.code(name) and scope.loop]
            weight = max(map(self._weight, scopes), default=0)
            scopes = [scope for scope in scopes if self._weight(scope) == weight and not scope.ends_tile]
            opened = {scope.number: self.ran[self._opens(name, scope.number)].sum() for scope in scopes}
            chosen[name] = max(opened, key=lambda number: (opened[number], -number)) if opened else None
        return chosen

    def _opens(self, group: str, scope: int | None) -> NDArray[np.bool_]:
        """For each of `intervals`: whether it is this group's and begins with the start of the scope."""
        of_group = np.array([interval.group == group for interval in self.intervals], dtype=bool)
        opens: NDArray[np.bool_] = of_group & (self.probes[:, 0] == (-1 if scope is None else 2 * scope + 1))
        return opens

    def _weight(self, scope: Scope) -> int:
        loop = self.program.loops.get(scope.loop)
        return 0 if loop is None else 2 if loop.mmas else 1 if loop.loads else 0

    @cached_property
    def loop_scopes(self) -> dict[str, set[int]]:
        """Group -> the scopes of its main loop, but for those in which a tile of a flattened loop ends."""
        loops = {name: self.program.scopes[main].loop for name, main in self.main_scope.items() if main is not None}
        return {
            name: {
                scope.number
                for scope in self.program.scopes
                if name in loops
                and scope.group == self.program.code(name)
                and scope.loop == loops[name]
                and not scope.ends_tile
            }
            for name in self.groups
        }

    @cached_property
    def in_loop(self) -> NDArray[np.bool_]:
        """For each of `intervals`: whether both its ends belong to its group's main loop."""
        inside = np.zeros(len(self.program.scopes), dtype=bool)
        inside[sorted(set().union(*self.loop_scopes.values()))] = True
        first, second = self.probes.T // 2
        both: NDArray[np.bool_] = inside[first] & inside[second]
        return both

    def iteration_times(self, group: str) -> NDArray[np.int64]:
        """Cycles from an iteration's start in the main loop to the next one's, with nothing but the loop between."""
        cycles, steady = self._steps[group]
        return cycles[steady]

    def boundaries(self, group: str) -> NDArray[np.int64]:
        """Cycles from the start of a tile's last iteration to that of the next tile's first, in a persistent CTA."""
        cycles, steady = self._steps[group]
        return cycles[~steady]

    def iterations(self, group: str) -> int:
        """How often the main loop of a group ran in the whole launch."""
        return int(self.iterations_of_ctas(group).sum())

    def iterations_of_ctas(self, group: str) -> NDArray[np.int64]:
        """How often the main loop of a group ran in each CTA."""
        ctas = self.events.cta_of(self._iterations[group])
        return np.bincount(ctas, minlength=self.events.n_ctas)

    @cached_property
    def _iterations(self) -> dict[str, NDArray[np.int64]]:
        """Group -> where the iterations of its main loop begin."""
        return {group: self.places(self._opens(group, main)) for group, main in self.main_scope.items()}

    @cached_property
    def _steps(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.bool_]]]:
        """Group -> cycles from iteration to iteration of a CTA, and whether nothing but the loop is between."""
        return {group: self._steps_of(group) for group in self.groups}

    def _steps_of(self, group: str) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        inside = [probe // 2 in self.loop_scopes[group] for probe in self.probes[:, 0]]
        outside = np.array([i.group == group for i in self.intervals], dtype=bool) & ~np.array(inside, dtype=bool)
        iterations = self._iterations[group]
        same = np.diff(self.events.row_of(iterations)) == 0
        steady = np.ones(len(same), dtype=bool)
        following = np.searchsorted(iterations, self.places(outside))
        steady[following[(following > 0) & (following < len(iterations))] - 1] = False
        return np.diff(self.events.cycle[iterations])[same], steady[same]

    def mmas_per_iteration(self) -> list[Mma]:
        """The MMAs of one iteration of the main loops, all partitions together."""
        mains = {self.program.code(name): main for name, main in self.main_scope.items() if main is not None}
        loops = (self.program.loops[self.program.scopes[main].loop] for main in mains.values())
        return [mma for loop in loops for mma in loop.mmas]

    @cached_property
    def lifetimes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last cycle of each CTA, over all of its warps."""
        events = self.events
        run = events.counts.ravel() > 1
        first = np.full(events.counts.size, np.iinfo(np.int64).max)
        last = np.full(events.counts.size, np.iinfo(np.int64).min)
        first[run], last[run] = events.cycle[events.begins[run]], events.cycle[events.ends[run] - 1]
        return first.reshape(events.counts.shape).min(axis=1), last.reshape(events.counts.shape).max(axis=1)

    def clock_mhz(self) -> float:
        """The SM clock during the launch: cycles over global-timer time, from CTA to CTA on each SM.

        An SM that ran one CTA counts the cycles of that CTA.
        """
        events = self.events
        cycles = elapsed = 0
        for sm in np.unique(events.sm):
            here = np.flatnonzero(events.sm == sm)
            here = here[np.argsort(events.start_ns[here], kind="stable")]
            cycles += int(_clock_steps(events.clock[here]).sum())
            elapsed += int(events.start_ns[here[-1]] - events.start_ns[here[0]])
        if elapsed <= 0 or cycles <= 0:
            first, last = self.lifetimes
            cycles, elapsed = int((last - first).sum()), int((events.end_ns - events.start_ns).sum())
        if elapsed <= 0 or cycles <= 0:
            clock = "global timer" if elapsed <= 0 else "SM clock"
            raise UsageError(f"the {clock} stands still in the trace: its header is damaged")
        return cycles / elapsed * 1e3

    def beside(self, number: int) -> list[tuple[int, int]]:
        """The CTAs that are on a CTA's SM while it runs, itself included, and by how much later their cycle 0 is.

        All of an SM's CTAs keep its clock, of 32 bits that wrap.
        """
        events = self.events
        first, last = self.lifetimes
        here = np.flatnonzero((events.sm == events.sm[number]) & (first < last))
        later = (events.clock[here] - events.clock[number] + 2**31) % 2**32 - 2**31
        met = (first[here] + later < last[number]) & (last[here] + later > first[number])
        return list(zip(here[met].tolist(), later[met].tolist(), strict=True))

    def neighbours(self, number: int) -> Neighbours | None:
        """A CTA and those on its SM while it runs; None if not all of their events are here."""
        beside = sorted(self.beside(number), key=lambda resident: resident[0] != number)
        lengths = self.events.counts.sum(axis=1)
        others = np.array([other for other, _ in beside])
        if not np.isin(others, self.whole_ctas).all() or (lengths[others[1:]] > LONGEST_CTA).any():
            return None
        ctas = self.ctas(others)
        residents = [Resident(cta, later) for cta, (_, later) in zip(ctas, beside, strict=True)]
        here = self.events.start_ns[self.events.sm == self.events.sm[number]]
        return Neighbours(residents, followed=bool((here >= self.events.end_ns[number]).any()))

    def recorded_once(self) -> NDArray[np.bool_]:
        """For each of `intervals`: whether it is of its warp group's first recorded warp, so that it counts once."""
        groups = (interval.group for interval in self.intervals)
        return np.array([self.program.code(group) == group for group in groups], dtype=bool)

    @cached_property
    def whole_ctas(self) -> NDArray[np.int64]:
        """CTAs of which no event was lost: each group's first event is the start of its lifetime."""
        lifetimes = {scope.group: scope.number for scope in reversed(self.program.scopes) if _is_lifetime(scope)}
        if not lifetimes:
            return np.arange(self.events.n_ctas)
        starts = np.array([2 * lifetimes.get(self.program.code(name), -1) + 1 for name in self.groups])
        counts = self.events.counts
        places = np.minimum(self.events.begins, len(self.events.probe) - 1).reshape(counts.shape)
        return np.flatnonzero(((counts > 0) & (self.events.probe[places] == starts)).all(axis=1))

    def ctas(self, chosen: NDArray[np.int64]) -> Iterator[Cta]:
        """The chosen CTAs, span by span; of one with more than LONGEST_CTA spans so many from its beginning."""
        for number in chosen.tolist():
            if number not in self._built:
                self._built[number] = self._build(number)
            yield self._built[number]

    def _build(self, number: int) -> Cta:
        events, warps = self.events, len(self.groups)
        rows = range(number * warps, (number + 1) * warps)
        cycles = [events.cycle[events.begins[row] : events.ends[row]] for row in rows]
        together = np.concatenate(cycles)
        if len(together) > LONGEST_CTA:
            until = np.partition(together, LONGEST_CTA)[LONGEST_CTA]
            cycles = [own_cycles[: np.searchsorted(own_cycles, until, side="right")] for own_cycles in cycles]
        opening = np.append(self._opening, False)
        looping = np.append(self.in_loop, False)
        spans: dict[str, list[Span]] = {}
        for group, row, own_cycles in zip(self.groups, rows, cycles, strict=True):
            kinds = self.kind[events.begins[row] :][: max(len(own_cycles) - 1, 0)]
            iterations = np.where(looping[kinds], np.cumsum(opening[kinds]) - 1, -1)
            at = own_cycles.tolist()
            spans[group] = [
                Span(self.intervals[kind], start, end, iteration if iteration >= 0 else None)
                for kind, start, end, iteration in zip(kinds.tolist(), at, at[1:], iterations.tolist(), strict=False)
            ]
        in_flight = list(in_flight_mmas(spans, self.program.cycles))
        program_id, sm, start_ns = (int(of[number]) for of in (events.program_id, events.sm, events.start_ns))
        return Cta(program_id, sm, start_ns, spans, in_flight)

    @cached_property
    def _opening(self) -> NDArray[np.bool_]:
        """For each of `intervals`: whether an iteration of its group's main loop begins with it."""
        opening: NDArray[np.bool_] = np.any([*starmap(self._opens, self.main_scope.items())], axis=0)
        return opening


def _smallest(largest: int) -> type[np.uint8] | type[np.uint16] | type[np.uint32]:
    """The smallest type of integers from 0 to this one."""
    return next(kind for kind in (np.uint8, np.uint16, np.uint32) if largest <= np.iinfo(kind).max)


def _clock_steps(clocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles from clock to clock, of 32 bits that wrap.

    CTAs that share an SM may start in another order than their first events come, so a step may lead back a little.
    """
    back = 2**28
    return (np.diff(clocks) + back) % 2**32 - back


def _is_lifetime(scope: Scope) -> bool:
    return scope.name.startswith(LIFETIME)


def in_flight_mmas(spans: Mapping[str, list[Span]], cycles: Callable[[Mma], float]) -> Iterator[InFlight]:
    """MMAs in flight, each with its `cycles`; one that nobody waits for before the end of the trace is left out."""
    for group, of_group in spans.items():
        if any(isinstance(step, int) for span in of_group for step in span.interval.queue):
            yield from _awaited_in_order(group, of_group, cycles)
        elif any(span.interval.arrives for span in of_group):
            yield from _awaited_by_others(group, spans, cycles)


def _awaited_in_order(group: str, spans: list[Span], cycles: Callable[[Mma], float]) -> Iterator[InFlight]:
    """Those whose end their own warp group waits for.

    Where a warp waits for loads into registers and then issues, it issues at the end: what it multiplies was not there.
    """
    pending: deque[tuple[Mma, int, int | None]] = deque()
    for span in spans:
        waits_first = span.interval.uses and 0 not in span.interval.queue
        for step in span.interval.queue:
            if isinstance(step, Mma):
                pending.append((step, span.end if waits_first else span.start, span.iteration))
            else:
                while len(pending) > step:
                    mma, start, iteration = pending.popleft()
                    yield InFlight(mma.name, group, start, span.end, iteration, cycles(mma))


def _awaited_by_others(
    group: str, spans: Mapping[str, list[Span]], cycles: Callable[[Mma], float]
) -> Iterator[InFlight]:
    """Those whose end other warp groups wait for, at mbarriers at which the tensor core arrives (tcgen05).

    An arrival ends the first wait for its stage ring that is over after the MMA's issue and that no earlier arrival
    ended. It says that all MMAs before it are over too: an MMA is in flight until the first such wait is over.
    """
    waits: dict[Value, dict[str, deque[int]]] = defaultdict(lambda: defaultdict(deque))
    for other, theirs in spans.items():
        for span in theirs if other != group else ():
            for stage_ring in span.interval.waits:
                waits[stage_ring][other].append(span.end)
    issued: list[tuple[Mma, Span, int]] = []
    ended: list[int] = []
    for span in spans[group]:
        issued += [(step, span, len(ended)) for step in span.interval.queue if isinstance(step, Mma)]
        for stage_ring in span.interval.arrives:
            for ends in waits[stage_ring].values():
                while ends and ends[0] <= span.start:
                    ends.popleft()
                if ends:
                    ended.append(ends.popleft())
    first = list(accumulate(reversed(ended), min))[::-1]
    for mma, span, place in issued:
        if place < len(first):
            yield InFlight(mma.name, group, span.start, first[place], span.iteration, cycles(mma))
