"""Slack: how much shorter a trip would be if one region took no time, from the graph of what hangs on what.

First the graph has to earn trust: the blocks are run again, with the measured cycles of every step that hangs on
nothing, and of every other one only the mean of its own cycles, so that how long it waits comes from the graph. The
period of that is told beside the measured one, which is a mean too: what is rarely slow is part of both. Then one
region after another takes no time, and the rest happens as the graph has it. Less than zero means that the warp groups
then fall into a worse step with each other. What the graph does not know, as other blocks of the SM, is part of the own
cycles of those that wait, and stays.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean, median

from kperf.trace.compiler.dataflow import Value
from kperf.trace.compiler.program import Program
from kperf.trace.reading.analysis import issued_loads, waits
from kperf.trace.reading.models import Graph, Slack
from kperf.trace.reading.replay import UNCHANGED, Assumptions, Change, Own, Replay, Step
from kperf.trace.reading.timeline import Block

STEPS_PER_BLOCK = 1000
"""Of all warp groups together, from the block's start: a hundred trips or more."""

DEVIATION = 0.2
"""How much longer or shorter a load, and slower or faster the tensor cores, are taken to be for the sensitivity."""

ALL = "all"
"""In the place of a warp group: the region in every group that has it."""
TENSOR_CORES = "tensor cores"
"""In the place of a warp group: a product on them, whoever issued it."""

OwnCycles = dict[tuple[str, int], float]
"""(warp group, identity of an interval) -> mean cycles beyond what it hangs on, of trips after a tile's first."""


class Blocks:
    """Some blocks, to be run again."""

    def __init__(self, blocks: Sequence[Block], program: Program) -> None:
        """Of several warps that run the same code the first stands for all."""
        first = {group.partition: group.name for group in reversed(program.groups)}
        self._replays = [_replay(block, set(first.values()), program.stages) for block in blocks]
        issuing = {interval.group for interval in program.intervals.values() if interval.issues}
        self._groups = [name for name in first.values() if name in issuing]
        self.load_cycles = min(map(load_cycles, blocks), default=0.0)

    def fit(self, assumed: Assumptions) -> tuple[float, OwnCycles, dict[tuple[str, str], float]]:
        """The measured period; own cycles of each interval; and of each region of the main loops, as medians."""
        by_interval: dict[tuple[str, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
        by_region: dict[tuple[str, str], list[float]] = defaultdict(list)

        def measured(group: str, step: Step, start: float, hangs_on: float) -> float:
            own = start + step.cycles - hangs_on
            by_interval[group, id(step.interval)][step.steady].append(own)
            if step.trip is not None:
                by_region[group, step.interval.name].append(own)
            return own

        periods = self._run(assumed, measured)
        return (
            fmean(periods) if periods else 0.0,
            {key: fmean(steady or others) for key, (others, steady) in by_interval.items()},
            {key: median(cycles) for key, cycles in by_region.items()},
        )

    def run_through(self, assumed: Assumptions) -> bool:
        """Whether no group that issues products stands still before its end, for something that never comes."""
        runs = ((replay, replay.run(assumed, lambda _group, step, *_: step.cycles)) for replay in self._replays)
        return all(len(ends[name]) == len(replay.steps[name]) for replay, ends in runs for name in self._groups)

    def period(self, assumed: Assumptions, own: OwnCycles, change: Change = UNCHANGED) -> float:
        """Cycles from trip to trip after a change."""

        def modelled(group: str, step: Step, *_: float) -> float:
            if step.interval.waits or step.interval.queue:
                return own[group, id(step.interval)]
            return step.cycles

        return fmean(self._run(assumed, modelled, change) or [0.0])

    def _run(self, assumed: Assumptions, own: Own, change: Change = UNCHANGED) -> list[float]:
        runs = ((replay, replay.run(assumed, own, change)) for replay in self._replays)
        return [cycles for replay, ends in runs for cycles in replay.periods(ends, self._groups)]

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


def slack(
    blocks: Sequence[Block], program: Program, flop_per_cycle: float
) -> tuple[Graph | None, list[Slack], dict[tuple[str, str], float]]:
    """How well the graph explains the blocks, what each region has to give, and own cycles by (warp group, region).

    Blocks that make no two trips in a row have no period that could be explained: no graph, and no slack.
    `flop_per_cycle`: peak rate of an SM for the kernel's products.
    """
    again = Blocks(blocks, program)
    changes = again.changes()
    saved: dict[tuple[str, str], list[float]] = {key: [] for key in changes}
    likely = Assumptions(again.load_cycles, flop_per_cycle)
    measured, own, by_region = again.fit(likely)
    if not measured:
        return None, [], by_region
    graph = Graph(
        blocks=len(blocks),
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
        Slack(region=region, warp_group=group, cycles=cycles[0], low=min(cycles), high=max(cycles))
        for (region, group), cycles in saved.items()
    ]
    return graph, sorted(rows, key=lambda row: -row.cycles), by_region


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
