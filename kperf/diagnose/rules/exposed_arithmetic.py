"""Arithmetic (a softmax, a conversion) during which no MMA is in flight."""

from collections.abc import Iterator

from kperf.diagnose.measured import finding, saved
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import EXPOSED_SHARE
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the cycles of arithmetic of an iteration that no warp group's MMAs cover."""
    hidden = timeline.arithmetic
    if hidden is None:
        return
    iteration_time = timeline.cycles_per_unit.median
    exposed = hidden.cycles - hidden.under_any_mmas
    computing = [role for role in timeline.roles if role.duty in ("MMAs", "MMAs and loads")]
    if exposed < EXPOSED_SHARE * iteration_time:
        return
    regions = [one for one in timeline.regions if one.kind == "arithmetic"]
    longest = max(regions, key=lambda one: one.per_iteration or one.cycles.median, default=None)
    in_step = len(computing) > 1
    yield finding(
        RULE.id,
        timeline,
        longest,
        "medium",
        f"in {exposed:.0f} of the {iteration_time:.0f} cycles of an iteration warps do arithmetic while no MMA is in "
        "flight"
        + (
            f": the {len(computing)} consumers (warp groups that issue MMAs) do their arithmetic at the same time"
            if in_step
            else ""
        ),
        "let the consumers take turns (a named barrier orders their MMAs), so that one consumer's arithmetic runs "
        "while another consumer's MMAs run"
        if in_step
        else "issue the next iteration's MMA before this iteration's arithmetic, or split the work between two "
        "consumers (warp groups that issue MMAs)",
        {"exposed_cycles": exposed, "arithmetic_cycles": hidden.cycles, "iteration_cycles": iteration_time},
        saved(timeline, exposed),
    )


RULE = DynamicRule("exposed-arithmetic", "Arithmetic that no MMA covers", check, explained_by=("table-recomputed",))
