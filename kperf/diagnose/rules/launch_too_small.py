"""A grid of fewer CTAs than the GPU has SMs."""

import math
from collections.abc import Iterator

from kperf.arch import H200, SM_90A
from kperf.console import agreeing
from kperf.diagnose.kernel import LOOPS, MMAS, Kernel, own
from kperf.diagnose.occupancy import arithmetic_cycles, moved_bytes
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LEAST_SM_BYTES, MEDIUM_GAIN
from kperf.trace.analyze.finding import Finding

_LIKELY = 0.65
"""The power of the share of idle SMs that more CTAs gave: 2.9 x of 8.3, and 2.5 x of 4.1 (H100)."""

_LONG = 16
"""Iterations: with fewer a CTA of several waits for its first tile as long as it multiplies. Not measured."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the grid of the launch."""
    assert kernel.grid is not None
    sms = H200.sms
    count = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    if sms / max(count, 1) < MEDIUM_GAIN or (count < 2 and not _sums_long(kernel)):
        return  # to split the work costs more than a few SMs give
    most = min(sms / count, _gain_of_one_pass(kernel, count))
    likely = min((sms / count) ** _LIKELY, most)
    yield kernel.finding(
        RULE.id,
        None,
        "medium" if likely >= MEDIUM_GAIN else "low",
        f"{count} {agreeing(count, 'CTA leaves', 'CTAs leave')} {sms - count} of {sms} SMs without work",
        "split the work further: use smaller tiles, or several CTAs for one sum (split-K); or do the work of several "
        "launches in one",
        {"ctas": count, "sms": sms},
        confidence="low",
        estimate=(likely, 1.0, most),
    )


def _sums_long(kernel: Kernel) -> bool:
    """Whether a loop multiplies in many iterations, which CTAs can share. One CTA is enough for a last small sum."""
    loops = [loop for loop in kernel.main_loops if any(op.name in MMAS for op in own(loop))]
    return any((kernel.iterations(loop) or 0) >= _LONG for loop in loops)


def _gain_of_one_pass(kernel: Kernel, count: int) -> float:
    """Of CTAs without loops: each waits for memory once, however little it has; infinity with loops."""
    work = max(
        moved_bytes(kernel, kernel.operations) / kernel.arch.memory_bytes_per_cycle,
        arithmetic_cycles(kernel, kernel.operations),
    )
    if any(True for _ in kernel.named(*LOOPS, *MMAS)) or not work:
        return math.inf
    latency = LEAST_SM_BYTES / kernel.arch.memory_bytes_per_cycle
    return (latency + work) / (latency + work * count / H200.sms)


RULE = Rule("launch-too-small", "A launch too small for the GPU", check, needs="launch", targets=(SM_90A.name,))
