"""A grid of fewer CTAs than the GPU has SMs."""

from collections.abc import Iterator

from kperf.arch import H200, SM_90A
from kperf.diagnose.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.trace.analyze.finding import Finding

_LIKELY = 0.65
"""The power of the share of idle SMs that more CTAs gave: 2.9 x of 8.3, and 2.5 x of 4.1 (H100)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the grid of the launch."""
    assert kernel.grid is not None
    sms = H200.sms
    count = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    if sms / max(count, 1) < MEDIUM_GAIN or count < 2:
        return  # to split the work costs more than a few SMs give
    yield kernel.finding(
        RULE.id,
        None,
        "medium",
        f"{count} CTAs leave {sms - count} of {sms} SMs without work",
        "split the work further: use smaller tiles, or several CTAs for one sum (split-K); or do the work of several "
        "launches in one",
        {"ctas": count, "sms": sms},
        confidence="low",
        estimate=((sms / count) ** _LIKELY, 1.0, sms / count),
    )


RULE = Rule("launch-too-small", "A launch too small for the GPU", check, needs="launch", targets=(SM_90A.name,))
