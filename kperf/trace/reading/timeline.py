"""What each warp did from record to record: the intervals of a launch, with the wgmma in flight under them."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.compiler.instrument import LIFETIME
from kperf.trace.compiler.program import Interval, Product, Program, Scope
from kperf.trace.reading.decode import Records

LONGEST_BLOCK = 100_000
"""Spans of a block that are followed one by one: thousands of trips."""


@dataclass(frozen=True)
class Span:
    """One interval as it ran: from `start` to `end`, in cycles of its block.

    `trip` counts the trips of the group's main loop, over all tiles of a persistent block; None between them.
    """

    interval: Interval
    start: int
    end: int
    trip: int | None

    @property
    def cycles(self) -> int:
        """How long it took."""
        return self.end - self.start


@dataclass(frozen=True)
class Flight:
    """A wgmma product from the start of its issue to the end of the wait that completed it, in cycles of its block."""

    product: str
    group: str
    start: int
    end: int
    trip: int | None


@dataclass
class Block:
    """One block of the launch: for each warp group its spans in time order, of a long block from its beginning."""

    program_id: int
    sm: int
    start_ns: int
    spans: dict[str, list[Span]]
    flights: list[Flight] = field(default_factory=list)

    @property
    def start(self) -> int:
        """The cycle of the first record."""
        return min(spans[0].start for spans in self.spans.values() if spans)

    @property
    def end(self) -> int:
        """The cycle at which the last warp group was done."""
        return max(spans[-1].end for spans in self.spans.values() if spans)

    def tiles(self, group: str) -> list[list[int]]:
        """Of each tile, the cycles at which the group's trips start: trips with nothing but the loop between."""
        tiles: list[list[int]] = []
        before: int | None = None
        for span in self.spans[group]:
            if span.trip is not None and span.trip != before:
                tiles += [[]] if before is None else []
                tiles[-1].append(span.start)
            before = span.trip
        return tiles


class Launch:
    """All intervals of a traced launch, as flat arrays over pairs of consecutive records of a warp.

    `kind` is an index into `intervals`; `start` and `end` are cycles of the block. Raises `UsageError` if records
    follow each other as the program cannot write them, or if one warp group wrote none at all.
    """

    def __init__(self, records: Records, program: Program, warps: tuple[int, ...]) -> None:
        """Pair consecutive records up."""
        self.records = records
        self.program = program
        groups = {group.first_warp: group.name for group in program.groups}
        self.groups = [groups.get(warp, f"warp {warp}") for warp in warps]
        silent = [name for index, name in enumerate(self.groups) if not (records.warp == index).any()]
        if silent:
            raise UsageError(
                f"no record of {', '.join(silent)}: was warp {warps[self.groups.index(silent[0])]} recorded?"
            )

        mark = records.scope.astype(np.uint16) * 2 + records.is_start
        if mark.max() >= 2 * len(program.scopes):
            raise UsageError("the trace has a scope that the kernel has not: it is another kernel's")
        same = (records.block[1:] == records.block[:-1]) & (records.warp[1:] == records.warp[:-1])
        first = np.flatnonzero(same)
        self.intervals, place = self._intervals_of_each()
        table = np.full((2 * len(program.scopes),) * 2, -1, dtype=np.int32)
        for index, ((a, a_start), (b, b_start)) in enumerate(program.intervals):
            table[2 * a + a_start, 2 * b + b_start] = index
        self.kind = table.ravel()[(mark[:-1].astype(np.int32) * len(table) + mark[1:])[same]]
        if (self.kind < 0).any():
            bad = first[np.argmax(self.kind < 0)]
            names = [program.scopes[records.scope[i]].name for i in (bad, bad + 1)]
            raise UsageError(
                f"the records are not balanced: {names[1]!r} cannot follow {names[0]!r} in block {records.block[bad]}"
            )
        self.first = first
        self.block = records.block[:-1][same]
        self.warp = records.warp[:-1][same]
        self.kind = place[self.warp, self.kind]
        self.start = records.cycle[:-1][same]
        self.end = records.cycle[1:][same]

    def _intervals_of_each(self) -> tuple[list[Interval], NDArray[np.int32]]:
        """The intervals of every recorded group, and [recorded warp, the program's interval] -> index into them.

        Where all warps run the same code each recorded one has intervals of its own.
        """
        intervals = list(self.program.intervals.values())
        place = np.tile(np.arange(len(intervals), dtype=np.int32), (len(self.groups), 1))
        for warp, name in enumerate(self.groups):
            code = self.program.code(name)
            if code == name:
                continue
            for index, interval in enumerate(self.program.intervals.values()):
                if interval.group == code:
                    place[warp, index] = len(intervals)
                    intervals.append(replace(interval, group=name))
        return intervals, place

    @cached_property
    def cycles(self) -> NDArray[np.int64]:
        """How long each interval took."""
        cycles: NDArray[np.int64] = self.end - self.start
        return cycles

    @cached_property
    def main_scope(self) -> dict[str, int | None]:
        """Group -> number of the scope that opens a trip of its main loop, None without a loop.

        The main loop is the one with the most trips of those that issue products, else of those that load.
        """
        found: dict[str, int | None] = {}
        for index, name in enumerate(self.groups):
            scopes = [scope for scope in self.program.scopes if scope.group == self.program.code(name) and scope.loop]
            weight = max(map(self._weight, scopes), default=0)
            scopes = [scope for scope in scopes if self._weight(scope) == weight and not scope.ends_tile]
            mine = self.records.scope[(self.records.warp == index) & self.records.is_start]
            counts = np.bincount(mine, minlength=len(self.program.scopes))
            found[name] = (
                max(scopes, key=lambda scope: (counts[scope.number], -scope.number)).number if scopes else None
            )
        return found

    def _weight(self, scope: Scope) -> int:
        loop = self.program.loops.get(scope.loop)
        return 0 if loop is None else 2 if loop.products else 1 if loop.loads else 0

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
        """Whether both ends of an interval belong to its group's main loop."""
        inside = np.zeros(len(self.program.scopes), dtype=bool)
        inside[sorted(set().union(*self.loop_scopes.values()))] = True
        here = inside[self.records.scope]
        result: NDArray[np.bool_] = here[self.first] & here[self.first + 1]
        return result

    def periods(self, group: str) -> NDArray[np.int64]:
        """Cycles from the start of a trip of the main loop to the start of the next, nothing but the loop between."""
        cycles, steady, _ = self._steps[group]
        return cycles[steady]

    def boundaries(self, group: str) -> NDArray[np.int64]:
        """Cycles from the start of a tile's last trip to the start of the next tile's first, in a persistent block."""
        cycles, steady, _ = self._steps[group]
        return cycles[~steady]

    def trips(self, group: str) -> int:
        """How often the main loop of a group ran in the whole launch."""
        return self._steps[group][2]

    @cached_property
    def _steps(self) -> dict[str, tuple[NDArray[np.int64], NDArray[np.bool_], int]]:
        """Group -> cycles from trip to trip of a block, whether nothing but the loop is between, and all its trips."""
        return {group: self._steps_of(group) for group in self.groups}

    def _steps_of(self, group: str) -> tuple[NDArray[np.int64], NDArray[np.bool_], int]:
        main = self.main_scope[group]
        if main is None:
            return np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_), 0
        records = self.records
        mine = np.flatnonzero(records.warp == self.groups.index(group))
        scope = records.scope[mine]
        outside = np.ones(len(self.program.scopes), dtype=np.bool_)
        outside[list(self.loop_scopes[group])] = False
        outside_before = np.cumsum(outside[scope], dtype=np.int32)
        trips = np.flatnonzero(records.is_start[mine] & (scope == main))
        block, cycle = records.block[mine[trips]], records.cycle[mine[trips]]
        same = block[1:] == block[:-1]
        between = np.diff(outside_before[trips])
        return np.diff(cycle)[same], between[same] == 0, len(trips)

    def trips_of_block(self, group: str, number: int) -> int:
        """How often the main loop of a group ran in one block of the launch."""
        mine = self.records.warp == self.groups.index(group)
        trips = mine & self.records.is_start & (self.records.scope == self.main_scope[group])
        return int((self.records.block[trips] == number).sum())

    def products_per_trip(self) -> list[Product]:
        """The products of one trip of the main loops, all partitions together."""
        mains = {self.program.code(name): main for name, main in self.main_scope.items() if main is not None}
        loops = (self.program.loops[self.program.scopes[main].loop] for main in mains.values())
        return [product for loop in loops for product in loop.products]

    @cached_property
    def _lifetimes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        first = np.full(self.records.n_blocks, np.iinfo(np.int64).max)
        last = np.full(self.records.n_blocks, np.iinfo(np.int64).min)
        begins = np.flatnonzero(np.diff(self.block, prepend=-1))  # block by block, as the records are
        if begins.size:
            first[self.block[begins]] = np.minimum.reduceat(self.start, begins)
            last[self.block[begins]] = np.maximum.reduceat(self.end, begins)
        return first, last

    def lifetimes(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """First and last cycle of each block, over all of its warps."""
        return self._lifetimes

    def clock_mhz(self) -> float:
        """The SM clock during the launch: cycles over global-timer time, from block to block on each SM.

        An SM that ran one block counts the cycles of that block.
        """
        records = self.records
        cycles = elapsed = 0
        for sm in np.unique(records.sm):
            here = np.flatnonzero(records.sm == sm)
            here = here[np.argsort(records.start_ns[here], kind="stable")]
            cycles += int(_clock_steps(records.clock[here]).sum())
            elapsed += int(records.start_ns[here[-1]] - records.start_ns[here[0]])
        if elapsed <= 0 or cycles <= 0:
            first, last = self.lifetimes()
            cycles, elapsed = int((last - first).sum()), int((records.end_ns - records.start_ns).sum())
        if elapsed <= 0 or cycles <= 0:
            what = "global timer" if elapsed <= 0 else "SM clock"
            raise UsageError(f"the {what} stands still in the trace: its header is damaged")
        return cycles / elapsed * 1e3

    def whole_blocks(self) -> NDArray[np.int64]:
        """Blocks of which no record was lost: each group's first record is the start of its lifetime."""
        lifetimes = {scope.group: scope.number for scope in reversed(self.program.scopes) if _is_lifetime(scope)}
        if not lifetimes:
            return np.arange(self.records.n_blocks)
        starts = np.array([lifetimes.get(self.program.code(name), -1) for name in self.groups])
        records = self.records
        marks = records.is_start & (records.scope == starts[records.warp])
        counts = np.bincount(records.block[marks], minlength=records.n_blocks)
        return np.flatnonzero(counts == len(self.groups))

    def blocks(self, chosen: NDArray[np.int64]) -> Iterator[Block]:
        """The chosen blocks, span by span; of one with more than LONGEST_BLOCK spans so many from its beginning."""
        bounds = np.searchsorted(self.block, np.stack([chosen, chosen + 1]))
        for number, low, high in zip(chosen, *bounds, strict=True):
            begins = self.start[low:high]
            until = np.partition(begins, LONGEST_BLOCK)[LONGEST_BLOCK] if len(begins) > LONGEST_BLOCK else None
            spans: dict[str, list[Span]] = {name: [] for name in self.groups}
            trips: dict[str, int] = {}
            for i in range(int(low), int(high)) if until is None else low + np.flatnonzero(begins < until):
                group = self.groups[self.warp[i]]
                first = self.first[i]
                scope = int(self.records.scope[first])
                if scope == self.main_scope[group] and self.records.is_start[first]:
                    trips[group] = trips.get(group, -1) + 1
                trip = trips.get(group) if self.in_loop[i] else None
                spans[group].append(Span(self.intervals[self.kind[i]], int(self.start[i]), int(self.end[i]), trip))
            block = Block(
                int(self.records.program_id[number]),
                int(self.records.sm[number]),
                int(self.records.start_ns[number]),
                spans,
            )
            block.flights = [flight for group in self.groups for flight in flights(group, spans[group])]
            yield block


def _clock_steps(clocks: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cycles from clock to clock, of 32 bits that wrap.

    Blocks that share an SM may start in another order than their first records come, so a step may lead back a little.
    """
    back = 2**28
    return (np.diff(clocks) + back) % 2**32 - back


def _is_lifetime(scope: Scope) -> bool:
    return scope.name.startswith(LIFETIME)


def flights(group: str, spans: list[Span]) -> Iterator[Flight]:
    """Products in flight; one that nobody waits for before the end of the trace is left out.

    Where a warp waits for loads into registers and then issues, it issues at the end: what it multiplies was not there.
    """
    pending: deque[Flight] = deque()
    for span in spans:
        waits_first = span.interval.uses and 0 not in span.interval.queue
        for step in span.interval.queue:
            if isinstance(step, Product):
                pending.append(Flight(step.name, group, span.end if waits_first else span.start, span.end, span.trip))
            else:
                while len(pending) > step:
                    yield replace(pending.popleft(), end=span.end)
