"""Operands of an MMA that were narrower numbers in memory and were widened before it."""

from collections.abc import Iterator, Mapping

from kperf.diagnose.analyses.operands import (
    WORDS,
    Widened,
    in_memory,
    runs_on_fma,
    scaled_after,
    to_narrow,
    widened_operands,
)
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_OF_CUDA = ("f8E4M3FN", "f8E5M2")
"""Bytes that AMD's older GPUs multiply as wider floats: theirs are others (FNUZ)."""
_OF_FLOAT32, _OF_HALVES = 2.0, 1.3
"""What bytes gain over the floats that they are made: of float32 1.91 x were measured (H200, fp8 with scales)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of 16-bit floats that are made float32, and of MMAs whose operands both are bytes and are made floats."""
    for op in kernel.named(*MMAS):
        if runs_on_fma(kernel, op):
            continue  # dot-on-fma says more
        widened = widened_operands(kernel, op)
        of_bytes = [one for one in widened.values() if one.is_byte]
        if len(of_bytes) == 2:
            yield from _of_bytes(kernel, op, *of_bytes)
        elif any(one.wide == "f32" for one in widened.values() if not one.is_byte):
            yield _of_halves(kernel, op, widened)


def _of_halves(kernel: Kernel, op: Operation, widened: Mapping[int, Widened]) -> Finding:
    """Severe where both operands are widened; else the other one is float32."""
    both = len(widened) == 2
    whose = "an operand of the MMA is"
    if both:
        alike = len({one.narrow for one in widened.values()}) == 1
        whose = "both operands of the MMA are" if alike else "the operands of the MMA are"
    place, one = next((place, one) for place, one in widened.items() if not one.is_byte)
    return kernel.finding(
        RULE.id,
        op,
        "high" if both else "medium",
        f"{whose} {in_memory(widened)} in memory, and {'are' if both else 'is'} converted to float32 "
        f"{'before the MMA' if both else 'as the other operand is float32'}, which at least halves the tensor cores' "
        "rate",
        to_narrow(widened),
        {"operand": place, "loaded_as": one.in_words},
        estimate=(3.0, 1.3, 8.0) if both else (1.8, 1.0, 4.0),
    )


def _of_bytes(kernel: Kernel, op: Operation, one: Widened, other: Widened) -> Iterator[Finding]:
    """Where the GPU multiplies bytes faster; a single operand of bytes has to be as wide as the other."""
    rates = kernel.arch.flop_per_cycle
    faster = rates.get(one.dtype, 0) / rates["tf32" if one.wide == "f32" else "bf16"]
    known = kernel.arch.backend == "cuda" or not {one.narrow, other.narrow} & set(_OF_CUDA)
    if one.dtype != other.dtype or faster <= 1 or not known:
        return
    sums = "int32" if one.dtype == "int8" else "float32 (with fewer bits on Hopper: max_num_imprecise_acc)"
    yield kernel.finding(
        RULE.id,
        op,
        "medium",
        f"both operands of the MMA are {one.in_words} in memory, and are converted to {WORDS.get(one.wide, one.wide)} "
        f"before the MMA: the tensor cores multiply {one.dtype} {faster:.0f} times as fast",
        f"give tl.dot the {one.dtype} operands, which it sums in {sums}"
        + (scaled_after((one, other)) or ", and then scale the sum"),
        {"loaded_as": one.in_words, "rate": faster},
        estimate=(_OF_FLOAT32 if one.wide == "f32" else _OF_HALVES, 1.0, 2 * faster),
    )


RULE = Rule("widened-operands", "Operands widened before an MMA", check)
