"""CTAs that return without work."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import EARLY_CTAS
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the share of CTAs that make no iteration where others make some."""
    one = timeline.imbalance
    if one is None or one.early_share < EARLY_CTAS:
        return
    yield finding(
        RULE.id,
        timeline,
        None,
        "low" if one.early_time_share < EARLY_CTAS / 2 else "medium",
        f"{one.early_share:.0%} of the CTAs run no iteration of the main loop, and take {one.early_time_share:.0%} of "
        "the time of all CTAs",
        "launch only the CTAs that have work: compute the grid on the host, or write a persistent kernel that skips "
        "tiles without work",
        {"early_share": one.early_share, "early_time_share": one.early_time_share},
        (1 / (1 - one.early_time_share), 1.0, 1 / (1 - one.early_time_share) * 1.05),
    )


RULE = DynamicRule("early-return", "CTAs that return without work", check)
