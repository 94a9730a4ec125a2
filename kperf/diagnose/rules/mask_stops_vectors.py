"""Accesses of a few bytes because of a mask: it may end anywhere, or it is data."""

from collections.abc import Iterator

from kperf.diagnose.kernel import STORES, Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.vectors import Vector, findings
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of aligned rows under a mask whose limit is not known to be a multiple of 16, or that was loaded."""
    return findings(kernel, RULE.id, {"mask": _reason, "loaded mask": _reason})


def _reason(vector: Vector) -> tuple[str, str]:
    if vector.cause == "mask":
        return (
            f"its mask ends at {', '.join(vector.unknown)}, of which no multiple of 16 is known",
            "launch with a multiple of 16 (the compiler then specialises the kernel), or leave the mask out where the "
            "tile divides the size",
        )
    why = "its mask is computed from loaded numbers, so that each element may have its own"
    if vector.access.operation.name in STORES:
        return why, "store all elements, with what stood there where the mask is false (tl.where), if no other CTA may"
    return why, "load with the mask of the bounds alone, and choose with tl.where(mask, x, other) after it"


RULE = Rule("mask-stops-vectors", "A mask that stops vectorisation", check, needs="machine code")
