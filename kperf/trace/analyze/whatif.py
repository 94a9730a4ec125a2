"""What-if savings: how much shorter an iteration would be if one region took no time, by replay of dependencies.

First the graph has to earn trust: the blocks are run again, with the measured cycles of every step that hangs on
nothing, and of every other one only its own cycles, so that how long it waits comes from the graph. These are another
trip's, by lot. With its own trip's the measured period would come back whatever the graph says; with their mean too
short a one would, for of two things that take now longer and now shorter the later one is on average later than the
average of either. The period is told beside the measured one, both as means. Then one region after another takes no
time, and the rest happens as the graph has it. Less than zero means that the warp groups then fall into a worse step
with each other. What the graph does not know, as other blocks of the SM, is part of the own cycles of those that wait,
and stays.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from random import Random
from statistics import fmean, median

from kperf.ir.dataflow import Value
from kperf.trace.analyze.analysis import issued_loads, waits
from kperf.trace.analyze.models import Replayed, WhatIf
from kperf.trace.analyze.replay import UNCHANGED, Assumptions, Change, Replay, Step, Times
from kperf.trace.analyze.timeline import Block
from kperf.trace.instrument.program import Program

STEPS_PER_BLOCK = 1000
"""Of all warp groups together, from the block's start: a hundred trips or more."""

LOTS = 4
"""How often own cycles are dealt out: a lot moves the period by 1 % where waits differ most, their mean by half."""

DEVIATION = 0.2
"""How much longer or shorter a load, and slower or faster the tensor cores, are taken to be for the sensitivity."""

ALL = "all"
"""In the place of a warp group: the region in every group that has it."""
TENSOR_CORES = "tensor cores"
"""In the place of a warp group: a product on them, whoever issued it."""

OwnCycles = list[Times]
"""Of the steps of one block, for each lot: cycles beyond what a step hangs on, of some trip after a tile's first. What
hangs on nothing takes what was measured, and so does what was not reached when all took that."""


class Blocks:
    """Some blocks, to be run again."""

    def __init__(self, blocks: Sequence[Block], program: Program) -> None:
        """Of several warps that run the same code the first stands for all."""
        first = {group.partition: group.name for group in reversed(program.groups)}
        self._replays = [_replay(block, set(first.values()), program.stages) for block in blocks]
        issuing = {interval.group for interval in program.intervals.values() if interval.issues}
        self._groups = [name for name in first.values() if name in issuing]
        self.load_cycles = min(map(load_cycles, blocks), default=0.0)

    def fit(self, assumed: Assumptions) -> tuple[float, list[OwnCycles], dict[tuple[str, str], float]]:
        """The measured period; own cycles in each block; and of each region of the main loops, as medians."""
        periods: list[float] = []
        own: list[OwnCycles] = []
        by_region: dict[tuple[str, str], list[float]] = defaultdict(list)
        for replay in self._replays:
            ends, beyond = replay.as_measured(assumed)
            periods += replay.periods(ends, self._groups)
            reached = [
                (group, step, cycles)
                for group, mine in beyond.items()
                for step, cycles in zip(replay.steps[group], mine, strict=False)
            ]
            own.append(_dealt(replay, reached))
            for group, step, cycles in reached:
                if step.trip is not None:
                    by_region[group, step.interval.name].append(cycles)
        measured = fmean(periods) if periods else 0.0
        return measured, own, {key: median(cycles) for key, cycles in by_region.items()}

    def run_through(self, assumed: Assumptions) -> bool:
        """Whether no group that issues products stands still before its end, for something that never comes."""
        runs = ((replay, replay.run(assumed, replay.cycles)) for replay in self._replays)
        return all(len(ends[name]) == len(replay.steps[name]) for replay, ends in runs for name in self._groups)

    def period(self, assumed: Assumptions, own: Sequence[OwnCycles], change: Change = UNCHANGED) -> float:
        """Mean cycles from trip to trip after a change."""
        runs = (
            (replay, replay.run(assumed, lot, change))
            for replay, mine in zip(self._replays, own, strict=True)
            for lot in mine
        )
        return fmean([cycles for replay, ends in runs for cycles in replay.periods(ends, self._groups)] or [0.0])

    def changes(self) -> dict[tuple[str, str], Change]:
        """(region, warp group) -> what takes no time: regions and loads of the main loops, products on their way."""
        steps = [
            (group, step.interval)
            for replay in self._replays
            for group, mine in replay.steps.items()
            for step in mine
            if step.trip is not None
        ]
        regions = dict.fromkeys((group, interval.name) for group, interval in steps)
        found = {(name, group): Change(regions=frozenset({(group, name)})) for group, name in regions}
        for name in dict.fromkeys(name for _, name in regions):
            everywhere = frozenset((group, other) for group, other in regions if other == name)
            if len(everywhere) > 1:
                found[name, ALL] = Change(regions=everywhere)
        for group, interval in steps:
            for buffer, _ in interval.loads:
                found[f"load {buffer}", group] = Change(loads=frozenset({buffer}))
            for product in interval.issues:
                found[product, TENSOR_CORES] = Change(products=frozenset({product}))
        return found


def what_if(
    blocks: Sequence[Block], program: Program, flop_per_cycle: float
) -> tuple[Replayed | None, list[WhatIf], dict[tuple[str, str], float]]:
    """How well the graph explains the blocks, what each region has to give, and own cycles by (warp group, region).

    Blocks that make no two trips in a row have no period that could be explained: no graph, and no saving.
    `flop_per_cycle`: peak rate of an SM for the kernel's products.
    """
    again = Blocks(blocks, program)
    changes = again.changes()
    saved: dict[tuple[str, str], list[float]] = {key: [] for key in changes}
    likely = Assumptions(again.load_cycles, flop_per_cycle)
    measured, own, by_region = again.fit(likely)
    if not measured:
        return None, [], by_region
    graph = Replayed(
        ctas=len(blocks),
        measured_cycles=measured,
        cycles=again.period(likely, own),
        load_cycles=likely.load_cycles,
        flop_per_cycle=flop_per_cycle,
    )
    for assumed in (likely, *_deviations(likely)):
        _, own, _ = again.fit(assumed)
        base = again.period(assumed, own)
        for key, change in changes.items():
            saved[key].append(base - again.period(assumed, own, change))
    rows = [
        WhatIf(
            region=region,
            warp_group=group,
            cycles=cycles[0],
            low=min(cycles),
            high=max(cycles),
            assumed_low=min(cycles),
            assumed_high=max(cycles),
        )
        for (region, group), cycles in saved.items()
    ]
    return graph, sorted(rows, key=lambda row: -row.cycles), by_region


def _dealt(replay: Replay, steps: Sequence[tuple[str, Step, float]]) -> OwnCycles:
    """Own cycles dealt out by lot.

    Regions of one name draw the same trips, whatever warp group they are of: what makes one of them late, a load or
    another block of the SM, makes the others late in the same trip.
    """
    found: dict[tuple[str, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    names: dict[tuple[str, int], str] = {}
    for group, step, cycles in steps:
        if step.interval.waits or step.interval.queue:
            found[group, id(step.interval)][step.steady].append(cycles)
            names[group, id(step.interval)] = step.interval.name
    own = {key: steady or others for key, (others, steady) in found.items()}
    most = {name: max(len(own[key]) for key in own if names[key] == name) for name in names.values()}
    trips = {name: [Random(f"{lot} {name}").sample(range(n), n) for lot in range(LOTS)] for name, n in most.items()}
    lots: OwnCycles = []
    for lot in range(LOTS):
        following = {
            key: cycle([cycles[trip % len(cycles)] for trip in trips[names[key]][lot]]) for key, cycles in own.items()
        }
        lots.append(
            {
                group: [
                    next(following[key]) if (key := (group, id(step.interval))) in following else step.cycles
                    for step in mine
                ]
                for group, mine in replay.steps.items()
            }
        )
    return lots


def _deviations(likely: Assumptions) -> list[Assumptions]:
    factors = (1 - DEVIATION, 1 + DEVIATION)
    return [
        *(replace(likely, load_cycles=likely.load_cycles * factor) for factor in factors),
        *(replace(likely, flop_per_cycle=likely.flop_per_cycle * factor) for factor in factors),
    ]


def load_cycles(block: Block) -> float:
    """What a load takes at most from its issue to its arrival: the shortest from an issue to the end of a wait for it.

    Less what a wait takes that is over at once, the shortest of the block. 0 if nobody waits for a load.
    """
    issued = issued_loads(block)
    at_once = min(
        (span.cycles for spans in block.spans.values() for span in spans if span.interval.kind == "wait"), default=0
    )
    found = [
        block.spans[group][index].end - issued[ring][number][0] - at_once
        for group, index, ring, number in waits(block)
        if number < len(issued.get(ring, ()))
    ]
    return float(max(0, min(found, default=0)))


def _replay(block: Block, groups: set[str], stages: Mapping[Value, int]) -> Replay:
    """The first STEPS_PER_BLOCK steps of these groups."""
    chosen = {group: spans for group, spans in block.spans.items() if group in groups and spans}
    starts = sorted(span.start for spans in chosen.values() for span in spans)
    until = starts[min(STEPS_PER_BLOCK, len(starts) - 1)]
    steps: dict[str, list[Step]] = {}
    for group, spans in chosen.items():
        tile, looping, first = -1, False, None
        steps[group] = []
        for span in spans:
            if span.start > until:
                break
            tile += span.trip is not None and not looping
            first = span.trip if not looping else first
            looping = span.trip is not None
            steps[group].append(Step(span.interval, span.cycles, span.trip, tile, looping and span.trip != first))
    return Replay(steps, {group: spans[0].start for group, spans in chosen.items()}, stages)
