"""Accesses of a few bytes because of a mask: it may end anywhere, or it is data."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.vectors import OF_MASKS, findings
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of aligned rows under a mask whose limit is not known to be a multiple of 16, or that was loaded."""
    return findings(kernel, RULE.id, OF_MASKS)


RULE = Rule("mask-stops-vectors", "A mask that stops vectorisation", check, needs="machine code")
