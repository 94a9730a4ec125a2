"""Accesses of a few bytes because the compiler does not know that rows are aligned."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.vectors import vectors
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of contiguous rows whose beginning may lie anywhere."""
    for vector in vectors(kernel):
        if vector.cause != "alignment":
            continue
        names = ", ".join(vector.unknown)
        yield kernel.finding(
            RULE.id,
            vector.access.operation,
            "medium",
            f"a thread asks for {vector.machine_bytes} bytes at a time where {vector.possible_bytes} lie side by side: "
            f"of {names} no multiple of 16 is known, so that rows may begin anywhere",
            f"pass tensors and strides that are multiples of 16, or say tl.multiple_of({vector.unknown[0]}, 16) where "
            "it is so; pad rows if it is not",
            {"machine_bytes": vector.machine_bytes, "possible_bytes": vector.possible_bytes},
            estimate=(min(vector.possible_bytes / vector.machine_bytes, 4.0) ** 0.5, 1.0, 4.0),
        )


RULE = Rule("narrow-access", "Rows of unknown alignment", check, needs="machine code")
