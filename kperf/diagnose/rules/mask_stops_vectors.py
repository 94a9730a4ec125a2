"""Accesses of a few bytes because of a mask: it may end anywhere, or it is data."""

from collections.abc import Iterator

from kperf.diagnose.kernel import STORES, Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.vectors import Vector, findings, no_multiple
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of aligned rows under a mask whose limit is not known to be a multiple of 16, or that was loaded."""
    return findings(kernel, RULE.id, {"mask": _reason, "loaded mask": _reason})


def _reason(vector: Vector) -> tuple[str, str]:
    if vector.cause == "mask":
        return (
            f"its mask ends at {no_multiple(vector.unknown)}",
            f"pass a multiple of 16 as {' and '.join(vector.unknown)} (Triton then specialises the kernel for it), or "
            "leave out the mask if the tile divides the size",
        )
    why = "its mask is computed from loaded numbers, so that it may leave out any element"
    if vector.access.operation.name in STORES:
        return why, (
            "store all elements (where the mask is false, the old value: load it, and choose with tl.where), if no "
            "other CTA writes to them"
        )
    return why, "load with the mask of the tensor's bounds alone, and then choose with tl.where(mask, x, other)"


RULE = Rule("mask-stops-vectors", "A mask that stops vectorisation", check, needs="machine code")
