"""A `tl.dot` that the tensor cores do not do."""

import math
from collections.abc import Iterator, Mapping

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.operands import Widened, runs_on_fma, to_narrow, widened_operands
from kperf.diagnose.operations import mma_element
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_LARGE = 128 * 128
"""Results of a tile from which on tf32x3 pays for the parts into which it splits each operand. It takes 1.17 times as
long as 'ieee' for 64 x 64 (H200), 1.19 times on an H100."""
_FROM_HALVES, _FROM_FLOAT32 = (6.0, 1.3), (1.5, 0.85)
"""What 16-bit operands gain, likely and at least, where one had 16 bits in memory (6.64 x of dot_ieee_int8, on an
H200), and where none had: another precision of float32 may lose."""


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
            widened = widened_operands(kernel, op)
            halves = any(not one.is_byte for one in widened.values())
            why = "its operands are float32 and input_precision is 'ieee'" + (_in_memory(widened) if halves else "")
            # all in float32: somebody wants it
            advice, severity = (to_narrow(widened), "high") if halves else (_advice(op), "medium")
            rates = kernel.arch.flop_per_cycle
            likely, least = _FROM_HALVES if halves else _FROM_FLOAT32
            estimate = (likely, least, rates["bf16"] / rates["fp32"])
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"tl.dot runs on the FMA units, not on the tensor cores: {why}",
            advice,
            {"operand": element, "result_layout": kernel.layouts.kind(tensor_types(op.rest)[-1].layout)},
            estimate=estimate,
        )


def _in_memory(widened: Mapping[int, Widened]) -> str:
    words = [widened[place].in_words for place in sorted(widened)]
    if len(words) == 1:
        return f", although one of them is {words[0]} in memory"
    return f", although they are {' and '.join(dict.fromkeys(words))} in memory"


def _advice(op: Operation) -> str:
    """Where both operands are float32 in memory."""
    shape = tensor_types(op.rest.partition(" : ")[2])[-1].shape
    small = math.prod(shape[-2:]) < _LARGE
    return (
        "if fewer bits are enough, pass input_precision='tf32' or bfloat16 operands; input_precision='tf32x3' "
        f"is as exact as 'ieee'{', and needs larger tiles: with these it is slower' if small else ''}"
    )


RULE = Rule("dot-on-fma", "tl.dot without tensor cores", check)
