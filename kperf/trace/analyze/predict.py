"""The iteration time of one kernel, predicted from stage times that were measured in another that does the same work.

The schedule is the predicted kernel's own: what an iteration of each warp group does, in which order and what it hangs
on, as its TTGIR has it. The durations are the other kernel's: self times by the kind of a region, of the warp group in
the same place; the cycles of a load; the tensor cores' rate. Nothing of the predicted kernel is measured.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

from kperf.errors import UsageError
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.replay import Assumptions, Course, Replay, Step
from kperf.trace.instrument.program import Interval, IntervalKind, Program

ITERATIONS = 64

Stages = Mapping[IntervalKind, list[float]]
"""Kind -> self times of each region of that kind in an iteration."""


class NoPredictionError(UsageError):
    """The timeline has no self times, or they do not match: of joined passes several regions may be one."""


def predict(program: Program, measured: Timeline) -> float:
    """Mean cycles of an iteration. Raises `NoPredictionError`."""
    if measured.replay is None:
        raise NoPredictionError(f"the timeline of {measured.label} has no replay: record it again")
    iterations = {group.name: iteration for group in program.groups if (iteration := _iteration(program, group.name))}
    places = [
        ([group for group, iteration in iterations.items() if issues(iteration) == (duty == "MMAs")], duty)
        for duty in ("MMAs", "loads")
    ]
    steps: dict[str, list[Step]] = {}
    for groups, duty in places:
        others = [role.warp_group for role in measured.roles if role.duty == duty]
        if len(others) != len(groups):
            raise NoPredictionError(
                f"{measured.label} has {len(others)} warp groups of {duty}, the other kernel {len(groups)}"
            )
        for group, other in zip(groups, others, strict=True):
            steps[group] = _steps(iterations[group], _stages(measured, other))
    replay = Replay({(0, group): Course(course, 0.0) for group, course in steps.items()}, program.stages)
    ends = replay.run(Assumptions(measured.replay.load_cycles, measured.replay.flop_per_cycle), replay.cycles)
    iteration_times = replay.iteration_times(ends, places[0][0])
    if len(iteration_times) < ITERATIONS:
        raise NoPredictionError(f"the loops of {program.kernel_name} wait for what comes before them: no prediction")
    return fmean(iteration_times)


def issues(iteration: list[Interval]) -> bool:
    """Whether MMAs are issued in it."""
    return any(interval.issues for interval in iteration)


def _iteration(program: Program, group: str) -> list[Interval]:
    """What a group does in one iteration of its innermost loop; nothing if it has none."""
    scopes = [scope for scope in program.scopes if scope.group == group and scope.loops]
    if not scopes:
        return []
    innermost = max(scopes, key=lambda scope: len(scope.loops)).loop
    marks = [(scope.number, start) for scope in scopes if scope.loop == innermost for start in (True, False)]
    pairs = list(pairwise([*marks, marks[0]]))
    if not all(pair in program.intervals for pair in pairs):
        raise NoPredictionError(f"an iteration of {group} has more ways than one: no prediction")
    return [program.intervals[pair] for pair in pairs]


def _stages(measured: Timeline, group: str) -> Stages:
    stages: dict[IntervalKind, list[float]] = defaultdict(list)
    for region in measured.regions:
        if region.warp_group == group and region.self_cycles is not None:
            stages[region.kind].append(region.self_cycles)
    return stages


def _steps(iteration: list[Interval], stages: Stages) -> list[Step]:
    """ITERATIONS of them. Arithmetic is all shared out, as it is the same work; of all else a region takes the mean."""
    kinds = [interval.kind for interval in iteration]
    missing = ({"arithmetic", "tensor"} & set(kinds)) - set(stages)
    if missing:
        raise NoPredictionError(f"the measured kernel has no region of {' or '.join(sorted(missing))}: no prediction")
    cycles = {
        kind: sum(stages[kind]) / kinds.count(kind) if kind == "arithmetic" else fmean(stages.get(kind) or [0.0])
        for kind in set(kinds)
    }
    return [Step(interval, cycles[interval.kind], number, 0) for number in range(ITERATIONS) for interval in iteration]
