"""More CTAs than their work is worth: to start them takes longer."""

from collections.abc import Iterator

from kperf.diagnose.analyses.starts import is_own, larger, starts_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LAUNCH_MS, MEDIUM_GAIN
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of launches that take longer to start their CTAs than these work, and than a launch itself takes."""
    starts = starts_of(kernel)
    widest = max(filter(is_own, kernel.accesses), key=lambda access: access.asked_bytes, default=None)
    if starts is None or widest is None or starts.starting < LAUNCH_MS * 1e6 or starts.gain[0] < MEDIUM_GAIN:
        return
    advice, candidates = larger(kernel, widest, starts.times)
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"each CTA does too little work: {starts.words}",
        advice,
        {"ctas": starts.ctas, "starting_us": starts.starting / 1e3, "working_us": starts.working / 1e3},
        confidence="medium",
        estimate=starts.gain,
        candidates=candidates,
    )


RULE = Rule(
    "program-per-item",
    "CTAs that take longer to start than to work",
    check,
    needs="launch",
    targets=("sm_",),
    explained_by=("idle-threads", "few-bytes-in-flight", "window-summed-anew"),
)
