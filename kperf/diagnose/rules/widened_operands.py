"""Operands of an MMA that were narrower numbers in memory and were widened before it."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.operands import WORDS, Widened, runs_on_fma, widened_operands
from kperf.diagnose.operations import MMAS
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_OF_CUDA = ("f8E4M3FN", "f8E5M2")
"""Bytes that AMD's older GPUs multiply as wider floats: theirs are others (FNUZ)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of 16-bit floats that are made float32, and of MMAs whose operands both are bytes and are made floats."""
    for op in kernel.named(*MMAS):
        if runs_on_fma(kernel, op):
            continue  # dot-on-fma says more
        widened = widened_operands(kernel, op)
        of_bytes = [one for one in widened.values() if one.is_byte]
        if len(of_bytes) == 2:
            yield from _of_bytes(kernel, op, *of_bytes)
        for place, one in widened.items():
            if one.wide == "f32" and not one.is_byte:
                yield _of_halves(kernel, op, place, one, both=len(widened) == 2)


def _of_halves(kernel: Kernel, op: Operation, place: int, widened: Widened, *, both: bool) -> Finding:
    """Severe where both operands are widened; else the other one is float32."""
    element = WORDS[widened.narrow]
    return kernel.finding(
        RULE.id,
        op,
        "high" if both else "medium",
        f"an operand of the MMA is {element} in memory, and is converted to float32 "
        f"{'before the MMA' if both else 'as the other operand is float32'}, which at least halves the tensor cores' "
        "rate",
        f"give tl.dot the {element} operands without a conversion: tl.dot sums in float32 anyway"
        if both
        else f"if {element} is precise enough, convert the other operand to {element}, and give tl.dot both",
        {"operand": place, "loaded_as": element},
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
        f"both operands of the MMA are {_words(one)} in memory, and are converted to {_words(one, wide=True)} "
        f"before the MMA: the tensor cores multiply {one.dtype} {faster:.0f} times as fast",
        f"give tl.dot the {one.dtype} operands, which it sums in {sums}, and then scale the sum",
        {"loaded_as": _words(one), "rate": faster},
        estimate=(1.3, 1.0, 2 * faster),
    )


def _words(widened: Widened, *, wide: bool = False) -> str:
    element = widened.wide if wide else widened.narrow
    return WORDS.get(element, "fp8")


RULE = Rule("widened-operands", "Operands widened before an MMA", check)
