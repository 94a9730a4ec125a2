"""A `tl.dot` that the tensor cores do not do."""

import math
from collections.abc import Iterator, Mapping

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.operands import WORDS, Widened, runs_on_fma, widened_operands
from kperf.diagnose.operations import mma_element
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_LARGE = 128 * 128
"""Results of a tile from which on tf32x3 pays for the parts into which it splits each operand. It takes 1.17 times as
long as 'ieee' for 64 x 64 (H200), 1.19 times on an H100."""
_FROM_HALVES = 6.0
"""What 16-bit operands in place of float32 ones gain, where they were 16 bits in memory."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of each `tl.dot` that the FMA units do."""
    for op in kernel.named("tt.dot"):
        if not runs_on_fma(kernel, op):
            continue
        element = mma_element(op)
        if element != "f32":
            why = f"no MMA of this target takes {element} operands in this shape"
            advice = "use float16, bfloat16, fp8 or int8 operands, and tiles of at least 16 x 8 x 16 (rows, columns, K)"
            severity: Level = "high"
            estimate = (6.0, 2.0, 16.0)
        else:
            halves = {place: one for place, one in widened_operands(kernel, op).items() if not one.is_byte}
            why = "its operands are float32 and input_precision is 'ieee'" + _in_memory(halves)
            advice, severity = _advice(op, halves), "high" if halves else "medium"  # all in float32: somebody wants it
            rates = kernel.arch.flop_per_cycle
            estimate = (_FROM_HALVES if halves else 1.5, 0.85, rates["bf16"] / rates["fp32"])
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"tl.dot runs on the FMA units, not on the tensor cores: {why}",
            advice,
            {"operand": element, "result_layout": kernel.layouts.kind(tensor_types(op.rest)[-1].layout)},
            estimate=estimate,
        )


def _in_memory(halves: Mapping[int, Widened]) -> str:
    if not halves:
        return ""
    whose = "both are" if len(halves) == 2 else "one of them is"
    return f", although {whose} {' and '.join(sorted({WORDS[one.narrow] for one in halves.values()}))} in memory"


def _advice(op: Operation, halves: Mapping[int, Widened]) -> str:
    """halves: the operands that have 16 bits in memory, by place."""
    if halves:
        narrow = WORDS[halves[min(halves)].narrow]
        if len(halves) == 2:
            return f"give tl.dot the {narrow} operands without a conversion: tl.dot sums in float32 anyway"
        return (
            f"if {narrow} is precise enough, convert the other operand to {narrow}, and give tl.dot both; else pass "
            "input_precision='tf32'"
        )
    shape = tensor_types(op.rest.partition(" : ")[2])[-1].shape
    small = math.prod(shape[-2:]) < _LARGE
    return (
        "if fewer bits are enough, pass input_precision='tf32' or bfloat16 operands; input_precision='tf32x3' "
        f"is as exact as 'ieee'{', and needs larger tiles: with these it is slower' if small else ''}"
    )


RULE = Rule("dot-on-fma", "tl.dot without tensor cores", check)
