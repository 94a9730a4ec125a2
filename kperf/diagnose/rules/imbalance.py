"""CTAs of which some take much longer than others."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import IDLE_SHARE, SEVERE_SHARE, UNEVEN_CTAS
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the times of CTAs, where SMs are idle meanwhile."""
    one, sms = timeline.imbalance, timeline.sms
    if one is None or sms is None or sms.idle < IDLE_SHARE:
        return
    longest = max(one.cta_us.p95, one.slowest.us)
    if longest < UNEVEN_CTAS * max(one.cta_us.median, 1e-9):
        return
    yield finding(
        RULE.id,
        timeline,
        None,
        "high" if sms.idle >= SEVERE_SHARE else "medium",
        f"CTAs take unequal times: the slowest CTA (program {one.slowest.program_id}) runs for {one.slowest.us:.0f} "
        f"us, the median CTA for {one.cta_us.median:.0f} us, and SMs are idle for {sms.idle:.0%} of the launch",
        "split long rows or groups into parts of equal work, start the CTAs with most work first, or let CTAs take "
        "tiles from an atomic counter",
        {"slowest_us": one.slowest.us, "median_us": one.cta_us.median, "idle": sms.idle},
        (1 / max(1 - sms.idle, 0.05), 1.0, 1 / max(1 - sms.idle, 0.05) * 1.1),
    )


RULE = DynamicRule("imbalance", "CTAs of unequal work", check)
