"""Accesses of a few bytes because the compiler does not know that rows are aligned, or that a stride is 1."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.diagnose.vectors import FROM_MEMORY, Vector, vectors, wrapped
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of contiguous rows whose beginning may lie anywhere, and of launches whose rows alone are contiguous."""
    for vector in vectors(kernel):
        reason = _REASONS.get(vector.cause)
        if reason is None:
            continue
        why, advice = reason(vector)
        yield kernel.finding(
            RULE.id,
            vector.access.operation,
            "medium",
            f"a thread asks for {vector.machine_bytes} bytes at a time where {vector.possible_bytes} lie side by side: "
            f"{why}",
            advice,
            {"machine_bytes": vector.machine_bytes, "possible_bytes": vector.possible_bytes},
            estimate=(min(vector.possible_bytes / vector.machine_bytes, 4.0) ** 0.5, 1.0, 4.0),
        )


def _of_alignment(vector: Vector) -> tuple[str, str]:
    return (
        f"of {', '.join(vector.unknown)} no multiple of 16 is known, so that rows may begin anywhere",
        f"pass tensors and strides that are multiples of 16, or say tl.multiple_of({vector.unknown[0]}, 16) where "
        "it is so; pad rows if it is not",
    )


def _of_a_stride(vector: Vector) -> tuple[str, str]:
    """An annotated parameter, or one of do_not_specialize, is compiled for any number."""
    names, are = " and ".join(vector.unknown), "is" if len(vector.unknown) == 1 else "are"
    return (
        f"{names} {are} 1 at this launch, and the kernel is compiled for any number",
        f"declare {names} as tl.constexpr; or leave out the annotation and do_not_specialize, so that the JIT compiles "
        "for 1",
    )


def _of_memory(_: Vector) -> tuple[str, str]:
    return FROM_MEMORY


def _of_a_remainder(vector: Vector) -> tuple[str, str]:
    return wrapped(vector.unknown)


_REASONS = {
    "alignment": _of_alignment,
    "memory": _of_memory,
    "remainder": _of_a_remainder,
    "stride": _of_a_stride,
}

RULE = Rule("narrow-access", "Rows of unknown alignment", check, needs="machine code")
