"""The period of one kernel, predicted from stage times that were measured in another that does the same work.

The schedule is the predicted kernel's own: what a trip of each warp group does, in which order and what it hangs on, as
its TTGIR has it. The durations are the other kernel's: own cycles by the kind of a region, of the warp group in the
same place; the cycles of a load; the tensor cores' rate. Nothing of the predicted kernel is measured.
"""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise
from statistics import fmean

from kperf.errors import UsageError
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.replay import Assumptions, Replay, Step
from kperf.trace.instrument.program import Interval, IntervalKind, Program

TRIPS = 64

Stages = Mapping[IntervalKind, list[float]]
"""Kind -> own cycles of each region of that kind in a trip."""


def predict(program: Program, measured: Timeline) -> float:
    """Mean cycles of a trip. Raises `UsageError` where the timeline has no own cycles, or the two do not match."""
    if measured.replay is None:
        raise UsageError(f"the timeline of {measured.label} has no replay: record it again")
    trips = {group.name: trip for group in program.groups if (trip := _trip(program, group.name))}
    places = [
        ([group for group, trip in trips.items() if issues(trip) == (duty == "MMAs")], duty)
        for duty in ("MMAs", "loads")
    ]
    steps: dict[str, list[Step]] = {}
    for groups, duty in places:
        others = [role.warp_group for role in measured.roles if role.duty == duty]
        if len(others) != len(groups):
            raise UsageError(
                f"{measured.label} has {len(others)} warp groups of {duty}, the other kernel {len(groups)}"
            )
        for group, other in zip(groups, others, strict=True):
            steps[group] = _steps(trips[group], _stages(measured, other))
    replay = Replay(steps, dict.fromkeys(steps, 0.0), program.stages)
    ends = replay.run(Assumptions(measured.replay.load_cycles, measured.replay.flop_per_cycle), replay.cycles)
    periods = replay.periods(ends, places[0][0])
    if len(periods) < TRIPS:
        raise UsageError(f"the loops of {program.kernel_name} wait for what comes before them: no prediction")
    return fmean(periods)


def issues(trip: list[Interval]) -> bool:
    """Whether products are issued in it."""
    return any(interval.issues for interval in trip)


def _trip(program: Program, group: str) -> list[Interval]:
    """What a group does in one trip of its innermost loop; nothing if it has none."""
    scopes = [scope for scope in program.scopes if scope.group == group and scope.loops]
    if not scopes:
        return []
    innermost = max(scopes, key=lambda scope: len(scope.loops)).loop
    marks = [(scope.number, start) for scope in scopes if scope.loop == innermost for start in (True, False)]
    pairs = list(pairwise([*marks, marks[0]]))
    if not all(pair in program.intervals for pair in pairs):
        raise UsageError(f"an iteration of {group} has more ways than one: no prediction")
    return [program.intervals[pair] for pair in pairs]


def _stages(measured: Timeline, group: str) -> Stages:
    found: dict[IntervalKind, list[float]] = defaultdict(list)
    for region in measured.regions:
        if region.warp_group == group and region.self_cycles is not None:
            found[region.kind].append(region.self_cycles)
    return found


def _steps(trip: list[Interval], stages: Stages) -> list[Step]:
    """TRIPS trips. Of arithmetic all is shared out, as it is the same work; of all else a region takes the mean."""
    kinds = [interval.kind for interval in trip]
    missing = ({"arithmetic", "tensor"} & set(kinds)) - set(stages)
    if missing:
        raise UsageError(f"the measured kernel has no region of {' or '.join(sorted(missing))}: no prediction")
    cycles = {
        kind: sum(stages[kind]) / kinds.count(kind) if kind == "arithmetic" else fmean(stages.get(kind) or [0.0])
        for kind in set(kinds)
    }
    return [Step(interval, cycles[interval.kind], number, 0) for number in range(TRIPS) for interval in trip]
