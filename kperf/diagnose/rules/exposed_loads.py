"""An iteration that waits for what it loads."""

from collections.abc import Iterator

from kperf.console import agreeing
from kperf.diagnose.analyses.loops import launch_gives_stages, with_stages
from kperf.diagnose.analyses.measured import finding, memory_cycles_of_sm, region_of, saved
from kperf.diagnose.analyses.occupancy import ctas
from kperf.diagnose.analyses.pipelines import ctas_with, for_one_more_cta, needed_ctas, pipelines
from kperf.diagnose.analyses.unpipelined import how_to_load_ahead
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ASYNC_COPIES, TMA_LOADS
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import EXPOSED_SHARE, NEAR_ROOF, SEVERE_GAIN, SEVERE_WAIT
from kperf.trace.analyze.facts import at_bound
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline

_SMALLER = "use a smaller tile along the dimension of the loop (BLOCK_K in a GEMM)"
_OTHER_LOADS = "the loop loads no tile of which a thread has 4 contiguous bytes or more"
_NOT_PIPELINED = "{}; num_stages alone changes nothing, as the load is not pipelined: {}"
_IN_TILES = "load the tiles of the MMAs in the loop itself, with contiguous bytes for each thread"
_AHEAD = (*ASYNC_COPIES, *TMA_LOADS)
"""What fills buffers, perhaps in a loop without MMAs: of another warp group."""
_MORE = (1, 2, 3)
"""Stages, of which one is enough in most cases."""


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
        f"raise num_stages by one or two; if shared memory is full, {_SMALLER}",
        {"wait_cycles": wait.cycles, "iteration_cycles": iteration_time, "share": wait.share},
        gain,
        [{"num_stages": stages} for stages in (3, 4, 5, 2)],
    )


def _of_kernel(measured: Finding, kernel: Kernel) -> Finding:
    """With the number of stages that leaves an SM enough CTAs; or with what to do where no larger one does."""
    wanted, advice = _wanted(kernel)
    if advice:
        return measured.model_copy(update={"advice": advice, "candidates": [{"num_stages": one} for one in wanted]})
    least = kernel.num_stages or 0
    more = [one for one in measured.candidates if one["num_stages"] > least]
    return measured.model_copy(update={"candidates": more})


def _wanted(kernel: Kernel) -> tuple[list[int], str]:
    """Numbers of stages to try, and the advice; empty where one stage, or nothing that is known, is to blame."""
    loops = pipelines(kernel)
    if kernel.resources is None or (
        not loops and ((kernel.num_stages or 1) == 1 or any(True for _ in kernel.named(*_AHEAD)))
    ):
        return [], ""
    if not loops:
        why, advice = how_to_load_ahead(kernel) or (_OTHER_LOADS, _IN_TILES)
        return [], _NOT_PIPELINED.format(advice, why)
    loop, now = loops[0], max(ctas(kernel), 1)
    tried = launch_gives_stages(kernel, loop.loop)
    if (fewer := for_one_more_cta(kernel, loop)) is not None:
        return [fewer] * tried, (
            f"{with_stages(kernel, loop.loop, str(fewer))}, which leaves room for one more CTA on an SM: it works "
            "while another one waits"
        )
    wanted = [
        loop.stages + more for more in _MORE if ctas_with(kernel, loop, loop.stages + more) >= needed_ctas(kernel)
    ]
    if wanted:
        then = ctas_with(kernel, loop, wanted[0])
        fewer_fit = f"{then} {agreeing(then, 'CTA fits', 'CTAs fit')} on an SM in place of {now}, which are enough"
        return wanted * tried, (
            f"{with_stages(kernel, loop.loop, str(wanted[0]))}: one more stage takes {loop.stage_bytes} bytes of "
            f"shared memory, and {fewer_fit if then < now else 'no fewer CTAs fit on an SM'}"
        )
    left = ctas_with(kernel, loop, loop.stages + 1)
    why = f"{left} {agreeing(left, 'CTA fits', 'CTAs fit')} on an SM in place of {now}" if left else "no CTA fits"
    return [], (
        f"{_SMALLER}: one more stage of these tiles takes {loop.stage_bytes} bytes of shared memory, with which {why}"
    )


RULE = DynamicRule(
    "exposed-loads",
    "Loads that the MMAs wait for",
    check,
    explained_by=("loads-not-pipelined", "too-few-stages"),
    of_kernel=_of_kernel,
)
