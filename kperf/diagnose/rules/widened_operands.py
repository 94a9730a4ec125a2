"""Operands of an MMA that were narrower numbers in memory and were widened before it."""

from collections.abc import Iterator, Mapping

from kperf.diagnose.analyses.loops import largest_bytes
from kperf.diagnose.analyses.occupancy import resident_ctas
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
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.operations import MMAS
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_OF_CUDA = ("f8E4M3FN", "f8E5M2")
"""Bytes that AMD's older GPUs multiply as wider floats: theirs are others (FNUZ)."""
_BUFFERS = ("ttg.local_alloc",)
_OF_ONE = 1.8
"""What a narrow operand gains where the other one is narrowed too, with as many CTAs on an SM. A public kernel that had
room for two in place of one gained 3.5 x (H200)."""
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
    """Severe where both operands are widened, or where another CTA fits on an SM without it; else one is float32."""
    both = len(widened) == 2
    whose = "an operand of the MMA"
    if both:
        alike = len({one.narrow for one in widened.values()}) == 1
        whose = "both operands of the MMA" if alike else "the operands of the MMA"
    place, one = next((place, one) for place, one in widened.items() if not one.is_byte)
    where = one.by if _is_of_caller(one.by, op) else op
    more = 1.0 if both else _more_ctas(kernel)
    return kernel.finding(
        RULE.id,
        where,
        "high" if both or more > 1 else "medium",
        f"{whose}{f' on {lines_of([op], where)}' if where is not op else ''} {'are' if both else 'is'} "
        f"{in_memory(widened)} in memory, and {'are' if both else 'is'} converted to float32 "
        f"{'before the MMA' if both else 'as the other operand is float32'}, which at least halves the tensor cores' "
        "rate" + (f", and without which {more:.3g} times as many CTAs fit on an SM" if more > 1 else ""),
        to_narrow(widened, "leave out this conversion, " if where is not op else ""),
        {"operand": place, "loaded_as": one.in_words, "more_ctas": more},
        estimate=(3.0, 1.3, 8.0) if both else (_OF_ONE * more, 1.0, 4.0 * more),
    )


def _is_of_caller(conversion: Operation, mma: Operation) -> bool:
    """Whether a function that multiplies what it is given has its operands converted by its caller."""
    depths = [len(op.location.frames) if op.location is not None else 0 for op in (conversion, mma)]
    return 0 < depths[0] < depths[1]


def _more_ctas(kernel: Kernel) -> float:
    """How many times as many CTAs an SM has if each widened operand takes half of its shared memory."""
    if kernel.resources is None:
        return 1.0
    tiles = {
        made.line: largest_bytes(made)
        for op in kernel.named(*MMAS)
        for place, one in widened_operands(kernel, op).items()
        if not one.is_byte and one.wide == "f32"
        for made in kernel.values.sources(op, place, until=_BUFFERS)
        if made.name in _BUFFERS and any(source.line == one.by.line for source in kernel.values.sources(made, 0))
    }
    narrow = kernel.resources.shared_bytes - sum(tiles.values()) // 2
    return resident_ctas(kernel, shared_bytes=narrow) / resident_ctas(kernel)


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
