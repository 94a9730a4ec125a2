"""A warp group that loads too late for those that compute."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding, region_of, saved
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import EXPOSED_SHARE
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By what the replay saves if a region of the producer took no time."""
    producers = {role.warp_group for role in timeline.roles if role.duty == "loads"}
    savings = [one for one in timeline.what_if if one.warp_group in producers]
    most = max(savings, key=lambda one: one.cycles, default=None)
    iteration_time = timeline.cycles_per_unit.median
    if most is None or most.cycles < EXPOSED_SHARE * iteration_time:
        return
    yield finding(
        RULE.id,
        timeline,
        region_of(timeline, most.warp_group, [most.region]),
        "medium",
        f"the producer (the warp group that loads) is late: if its {most.region} took no time, an iteration of "
        f"{iteration_time:.0f} cycles would take {most.cycles:.0f} cycles less",
        "let consumers release a buffer as soon as the MMA that reads it is over, add a stage, or load the next tile "
        "before the loop",
        {"saved_cycles": most.cycles, "iteration_cycles": iteration_time},
        saved(timeline, most.cycles),
    )


RULE = DynamicRule("late-producer", "A producer that loads too late", check)
