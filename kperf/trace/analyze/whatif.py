"""What-if savings: how much shorter an iteration would be if one region took no time, by replay of dependencies.

First the replay has to earn trust: it runs the CTAs again with the measured cycles of every step that hangs on nothing,
and with only the self time of every other one, so that how long a step waits comes from the graph. Self times are
resampled: each is drawn from another iteration. With its own iteration's the measured iteration time would come back
whatever the graph says. With their mean the iteration time would be too short: of two things that take now longer and
now shorter, the later one is on average later than the average of either. The replayed iteration time stands beside the
measured one, both as means.

Then one region after another takes no time, and the rest happens as the graph has it. A saving below zero means that
the warp groups fall into a worse step with each other. What the graph does not know, as how CTAs share the memory, is
part of the self time of those that wait, and stays.

CTAs that share an SM are replayed together: MMAs of one wait for those of another. What a CTA did before the typical
one began stays as it was. Where not all of them were recorded each is replayed by itself, and a wait for another CTA's
MMAs is part of the self time too.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice
from random import Random
from statistics import fmean, median

from kperf.ir.sources import Value
from kperf.trace.analyze.analysis import issued_loads, waits
from kperf.trace.analyze.models import Replayed, WhatIf
from kperf.trace.analyze.replay import UNCHANGED, Assumptions, Change, Course, Replay, Row, Step, Times
from kperf.trace.analyze.timeline import Cta, Neighbours, Span
from kperf.trace.instrument.program import Program

STEPS_PER_SM = 1000
"""Of all warp groups of the CTAs that are there at once, from the typical one's start: tens of iterations of each."""

BEFORE = 0.25
"""Of that stretch: for how long its neighbours are followed before it, so that the queue of MMAs is as it was."""

DRAWS = 4
"""Resampling draws of self times: one moves the iteration time by 1 % where waits differ most, their mean by half."""

DEVIATION = 0.2
"""How much longer or shorter a load, and slower or faster the tensor cores, are taken to be for the sensitivity."""

ALL = "all"
"""In the place of a warp group: the region in every group that has it."""
TENSOR_CORES = "tensor cores"
"""In the place of a warp group: an MMA on them, whoever issued it."""

SelfTimes = list[Times]
"""Of the steps of one CTA, for each draw: self times of some iteration after a tile's first. What hangs on nothing
takes what was measured, and so does what was not reached when all took that."""


class Sms:
    """CTAs that share an SM, of some SMs, to be replayed."""

    def __init__(self, sms: Sequence[Neighbours], program: Program) -> None:
        """Of several warps that run the same code the first stands for all."""
        first = {group.partition: group.name for group in reversed(program.groups)}
        self._replays = [_replay(sm, set(first.values()), program.stages) for sm in sms]
        issuing = {interval.group for interval in program.intervals.values() if interval.issues}
        self._groups = [name for name in first.values() if name in issuing]
        self.load_cycles = min((load_cycles(resident.cta) for sm in sms for resident in sm.residents), default=0.0)
        self.most_resident = max((sm.together for sm in sms), default=0)

    def fit(self, assumed: Assumptions) -> tuple[float, list[SelfTimes], dict[tuple[str, str], float]]:
        """The measured iteration time; self times in each CTA; and of each region of the main loops, as medians."""
        iteration_times: list[float] = []
        self_times: list[SelfTimes] = []
        by_region: dict[tuple[str, str], list[float]] = defaultdict(list)
        for replay in self._replays:
            ends, beyond = replay.as_measured(assumed)
            iteration_times += replay.iteration_times(ends, self._groups)
            reached = [
                (row, step, cycles)
                for row, own_cycles in beyond.items()
                for step, cycles in islice(zip(replay.steps[row], own_cycles, strict=False), replay.known[row], None)
            ]
            self_times.append(_drawn(replay, reached))
            for (_, group), step, cycles in reached:
                if step.iteration is not None:
                    by_region[group, step.interval.name].append(cycles)
        measured = fmean(iteration_times) if iteration_times else 0.0
        return measured, self_times, {key: median(cycles) for key, cycles in by_region.items()}

    def run_through(self, assumed: Assumptions) -> bool:
        """Whether no group that issues MMAs stands still before its end, for something that never comes."""
        runs = ((replay, replay.run(assumed, replay.cycles)) for replay in self._replays)
        return all(
            len(ends[row]) == len(steps)
            for replay, ends in runs
            for row, steps in replay.steps.items()
            if row[1] in self._groups
        )

    def iteration_time(
        self, assumed: Assumptions, self_times: Sequence[SelfTimes], change: Change = UNCHANGED
    ) -> float:
        """Mean cycles from iteration to iteration after a change."""
        runs = (
            (replay, replay.run(assumed, draw, change))
            for replay, draws in zip(self._replays, self_times, strict=True)
            for draw in draws
        )
        return fmean(
            [cycles for replay, ends in runs for cycles in replay.iteration_times(ends, self._groups)] or [0.0]
        )

    def savings(
        self, assumed: Assumptions, self_times: Sequence[SelfTimes], changes: Iterable[Change]
    ) -> tuple[float, list[float]]:
        """Mean cycles from iteration to iteration, and how many fewer there are after each change."""
        unchanged = self.iteration_time(assumed, self_times)
        return unchanged, [unchanged - self.iteration_time(assumed, self_times, change) for change in changes]

    def changes(self) -> dict[tuple[str, str], Change]:
        """(region, warp group) -> what takes no time: regions and loads of the main loops, MMAs on their way."""
        steps = [
            (group, step.interval)
            for replay in self._replays
            for (_, group), own_steps in replay.steps.items()
            for step in own_steps
            if step.iteration is not None
        ]
        regions = dict.fromkeys((group, interval.name) for group, interval in steps)
        changes = {(name, group): Change(regions=frozenset({(group, name)})) for group, name in regions}
        for name in dict.fromkeys(name for _, name in regions):
            everywhere = frozenset((group, other) for group, other in regions if other == name)
            if len(everywhere) > 1:
                changes[name, ALL] = Change(regions=everywhere)
        for group, interval in steps:
            for buffer, _ in interval.loads:
                changes[f"load {buffer}", group] = Change(loads=frozenset({buffer}))
            for mma in interval.issues:
                changes[mma, TENSOR_CORES] = Change(mmas=frozenset({mma}))
        return changes


def what_if(
    sms: Sequence[Neighbours], program: Program, flop_per_cycle: float
) -> tuple[Replayed | None, list[WhatIf], dict[tuple[str, str], float]]:
    """How well the replay explains the CTAs, what each region saves, and self times by (warp group, region).

    A region takes no time in all CTAs of an SM at once. CTAs that make no two iterations in a row have no iteration
    time that could be explained: no graph, and no saving. `flop_per_cycle`: peak rate of an SM for the kernel's MMAs.
    """
    again = Sms(sms, program)
    changes = again.changes()
    likely = Assumptions(again.load_cycles, flop_per_cycle)
    measured, self_times, by_region = again.fit(likely)
    if not measured:
        return None, [], by_region
    replayed, savings = again.savings(likely, self_times, changes.values())
    graph = Replayed(
        ctas=sum(len(sm.residents) for sm in sms),
        together=again.most_resident,
        measured_cycles=measured,
        cycles=replayed,
        load_cycles=likely.load_cycles,
        flop_per_cycle=flop_per_cycle,
    )
    deviating = []
    for assumed in _deviations(likely):
        _, self_times, _ = again.fit(assumed)
        deviating.append(again.savings(assumed, self_times, changes.values())[1])
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
        for (region, group), cycles in zip(changes, zip(savings, *deviating, strict=True), strict=True)
    ]
    return graph, sorted(rows, key=lambda row: -row.cycles), by_region


def _drawn(replay: Replay, steps: Sequence[tuple[Row, Step, float]]) -> SelfTimes:
    """Self times resampled from other iterations.

    Regions of one name draw the same iterations, whatever warp group they are of: what makes one of them late, a load
    or another CTA of the SM, makes the others late in the same iteration.
    """
    of_intervals: dict[tuple[Row, int], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    names: dict[tuple[Row, int], str] = {}
    for row, step, cycles in steps:
        if step.interval.waits or step.interval.queue:
            of_intervals[row, id(step.interval)][step.steady].append(cycles)
            names[row, id(step.interval)] = step.interval.name
    self_times = {key: steady or others for key, (others, steady) in of_intervals.items()}
    most = {name: max(len(self_times[key]) for key in self_times if names[key] == name) for name in names.values()}
    iterations = {
        name: [Random(f"{draw} {name}").sample(range(n), n) for draw in range(DRAWS)] for name, n in most.items()
    }
    draws: SelfTimes = []
    for draw in range(DRAWS):
        following = {
            key: cycle([cycles[iteration % len(cycles)] for iteration in iterations[names[key]][draw]])
            for key, cycles in self_times.items()
        }
        draws.append(
            {
                row: [
                    next(following[key])
                    if (key := (row, id(step.interval))) in following and number >= replay.known[row]
                    else step.cycles
                    for number, step in enumerate(own_steps)
                ]
                for row, own_steps in replay.steps.items()
            }
        )
    return draws


def _deviations(likely: Assumptions) -> list[Assumptions]:
    factors = (1 - DEVIATION, 1 + DEVIATION)
    return [
        *(replace(likely, load_cycles=likely.load_cycles * factor) for factor in factors),
        *(replace(likely, flop_per_cycle=likely.flop_per_cycle * factor) for factor in factors),
    ]


def load_cycles(cta: Cta) -> float:
    """What a load takes at most from its issue to its arrival: the shortest from an issue to the end of a wait for it.

    Less what a wait takes that is over at once, the shortest of the CTA. 0 if nobody waits for a load.
    """
    issued = issued_loads(cta)
    at_once = min(
        (span.cycles for spans in cta.spans.values() for span in spans if span.interval.kind == "wait"), default=0
    )
    cycles = [
        cta.spans[group][index].end - issued[stage_ring][number][0] - at_once
        for group, index, stage_ring, number in waits(cta)
        if number < len(issued.get(stage_ring, ()))
    ]
    return float(max(0, min(cycles, default=0)))


def _replay(sm: Neighbours, groups: set[str], stages: Mapping[Value, int]) -> Replay:
    """The first steps of these groups in the first CTA, and what its neighbours do until then and shortly before."""
    first = sm.residents[0]
    starts = sorted(span.start for group, spans in first.cta.spans.items() if group in groups for span in spans)
    until = starts[min(STEPS_PER_SM // sm.together, len(starts) - 1)]
    since = first.start - (until - first.start) * BEFORE
    courses: dict[Row, Course] = {}
    left: set[int] = set()
    for number, resident in enumerate(sm.residents):
        for group in (name for name in resident.cta.spans if name in groups):
            spans = resident.cta.spans[group]
            at = [span.start + resident.later for span in spans]
            low, high = bisect_left(at, since), bisect_right(at, until)
            if high < len(spans):
                left.add(number)
            if low < high:
                known, past = bisect_left(at, first.start) - low, [span.interval for span in spans[:low]]
                courses[number, group] = Course(list(_steps(spans[low:high])), at[low], known, past)
    followed = set(range(len(sm.residents))) - set(sm.places.values()) if sm.followed else set()
    return Replay(courses, stages, sm.places, cut=left | followed if len(sm.residents) > 1 else ())


def _steps(spans: Sequence[Span]) -> Iterator[Step]:
    tile, looping, first = -1, False, None
    for span in spans:
        tile += span.iteration is not None and not looping
        first = span.iteration if not looping else first
        looping = span.iteration is not None
        yield Step(span.interval, span.cycles, span.iteration, tile, looping and span.iteration != first)
