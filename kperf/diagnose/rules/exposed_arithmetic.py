"""Arithmetic (a softmax, a conversion) during which no MMA is in flight."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding, saved
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import EXPOSED_SHARE
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline

_IN_STEP = (
    "let the consumers take turns (a named barrier orders their MMAs), so that one consumer's arithmetic runs while "
    "another consumer's MMAs run"
)
_ONE_CONSUMER = (
    "issue the next iteration's MMA before this iteration's arithmetic, or split the work between two consumers (warp "
    "groups that issue MMAs)"
)
_ALIKE = (
    "let an SM hold two CTAs (fewer warps, a smaller tile or fewer stages), so that one CTA's arithmetic runs while "
    "the other's MMAs run; or, in Gluon, let warp groups take turns"
)
"""Of warps that all run the same code: Triton issues their MMAs and arithmetic one after another."""
_IN_GLUON = (
    "issue the next iteration's MMA before this iteration's arithmetic, or let two consumers (warp groups that issue "
    "MMAs) take turns: you can write both changes in Gluon, but not in Triton"
)
"""Of such warps where an SM has two CTAs already."""


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the cycles of arithmetic of an iteration that no warp group's MMAs cover."""
    hidden = timeline.arithmetic
    if hidden is None:
        return
    iteration_time = timeline.cycles_per_unit.median
    exposed = hidden.cycles - hidden.under_any_mmas
    consumers = [role for role in timeline.roles if role.is_specialised and role.duty in ("MMAs", "MMAs and loads")]
    if exposed < EXPOSED_SHARE * iteration_time:
        return
    regions = [one for one in timeline.regions if one.kind == "arithmetic"]
    longest = max(regions, key=lambda one: one.per_iteration or one.cycles.median, default=None)
    in_step = len(consumers) > 1
    yield finding(
        RULE.id,
        timeline,
        longest,
        "medium",
        f"in {exposed:.0f} of the {iteration_time:.0f} cycles of an iteration warps do arithmetic while no MMA is in "
        "flight"
        + (
            f": the {len(consumers)} consumers (warp groups that issue MMAs) do their arithmetic at the same time"
            if in_step
            else ""
        ),
        _advice(timeline, len(consumers)),
        {"exposed_cycles": exposed, "arithmetic_cycles": hidden.cycles, "iteration_cycles": iteration_time},
        saved(timeline, exposed),
    )


def _advice(timeline: Timeline, consumers: int) -> str:
    if consumers:
        return _IN_STEP if consumers > 1 else _ONE_CONSUMER
    return _ALIKE if (timeline.residency.original or 1) < 2 else _IN_GLUON


RULE = DynamicRule("exposed-arithmetic", "Arithmetic that no MMA covers", check, explained_by=("table-recomputed",))
