"""An iteration that waits for what it loads."""

from collections.abc import Iterator

from kperf.diagnose.measured import finding, memory_cycles_of_sm, region_of, saved
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import EXPOSED_SHARE, NEAR_ROOF, SEVERE_GAIN, SEVERE_WAIT
from kperf.trace.analyze.facts import at_bound
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the cycles of an iteration in which a warp group that issues MMAs waits for loads.

    At the MMAs' bound these are cycles in which it would wait for its MMAs: more stages save none. Nor do they where
    the SM's CTAs together get their bytes as fast as a copy does: while one waits, memory serves the others.
    """
    wait = timeline.load_wait
    if wait is None or wait.share < EXPOSED_SHARE or at_bound(timeline):
        return
    iteration_time = timeline.cycles_per_unit.median
    if memory_cycles_of_sm(timeline) >= NEAR_ROOF * iteration_time:
        return
    gain = saved(timeline, wait.cycles)
    yield finding(
        RULE.id,
        timeline,
        region_of(timeline, wait.warp_group, wait.regions),
        "high" if wait.share >= SEVERE_WAIT and gain[2] >= SEVERE_GAIN else "medium",
        f"loads are exposed: {wait.cycles:.0f} of {iteration_time:.0f} cycles an iteration wait for them "
        f"({wait.warp_group}{', by samples' if wait.share_by_events is not None else ''})",
        "raise num_stages by one or two; if shared memory is full, use a smaller tile along the dimension of the loop "
        "(BLOCK_K in a GEMM)",
        {"wait_cycles": wait.cycles, "iteration_cycles": iteration_time, "share": wait.share},
        gain,
        [{"num_stages": stages} for stages in (3, 4, 5, 2)],
    )


RULE = DynamicRule(
    "exposed-loads",
    "Loads that the MMAs wait for",
    check,
    explained_by=("loads-not-pipelined", "too-few-stages"),
    raises="num_stages",
)
