"""A kernel that is over before the next could be launched."""

from collections.abc import Iterator

from kperf.diagnose.analyses.measured import finding
from kperf.diagnose.rule import DynamicRule
from kperf.diagnose.thresholds import LAUNCH_MS
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline


def check(timeline: Timeline) -> Iterator[Finding]:
    """By the original kernel's time."""
    took = timeline.overhead.original_ms
    if took is None or took > LAUNCH_MS:
        return
    yield finding(
        RULE.id,
        timeline,
        None,
        "medium",
        f"the kernel runs for {took * 1e3:.1f} us, and the CPU takes about {LAUNCH_MS * 1e3:.0f} us to launch a kernel",
        "launch the kernel in a CUDA graph, fuse it with the kernel before or after it, or let one launch do more work",
        {"original_us": took * 1e3},
    )


RULE = DynamicRule("launch-overhead", "A kernel as short as its launch", check, explained_by=("launch-per-slice",))
