"""Accesses of a few bytes because a mask may end anywhere."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.vectors import vectors
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of aligned rows under a mask whose limit is not known to be a multiple of 16."""
    for vector in vectors(kernel):
        if vector.cause == "mask":
            yield kernel.finding(
                RULE.id,
                vector.access.operation,
                "medium",
                f"a thread asks for {vector.machine_bytes} bytes at a time where {vector.possible_bytes} lie side by "
                f"side: its mask ends at {', '.join(vector.unknown)}, of which no multiple of 16 is known",
                "launch with a multiple of 16 (the compiler then specialises the kernel), or leave the mask out where "
                "the tile divides the size",
                {"machine_bytes": vector.machine_bytes, "possible_bytes": vector.possible_bytes},
                estimate=(min(vector.possible_bytes / vector.machine_bytes, 4.0) ** 0.5, 1.0, 4.0),
            )


RULE = Rule("mask-stops-vectors", "A mask that stops vectorisation", check, needs="machine code")
