"""A `tl.dot` that the tensor cores do not do."""

import math
from collections.abc import Iterator

from kperf.diagnose.analyses.operands import in_memory, runs_on_fma, to_narrow, widened_operands
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import mma_element
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_LARGE = 128 * 128
"""Results of a tile from which on tf32x3 pays for the parts into which it splits each operand. It takes 1.17 times as
long as 'ieee' for 64 x 64 (H200), 1.19 times on an H100."""
_FROM_HALVES, _FROM_FLOAT32 = (6.0, 1.3), (1.5, 0.85)
"""What 16-bit operands gain, likely and at least, where both were narrower in memory (6.64 x of dot_ieee_int8, on an
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
            both = len(widened) == 2  # else somebody wants float32 of the other
            why = "its operands are float32 and input_precision is 'ieee'"
            if widened:
                why += f", although {'they are' if both else 'one of them is'} {in_memory(widened)} in memory"
            advice, severity = to_narrow(widened) if widened else _advice(op), "high" if both else "medium"
            likely, least = _FROM_HALVES if both else _FROM_FLOAT32
            rates = kernel.arch.flop_per_cycle
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


def _advice(op: Operation) -> str:
    """Where both operands are float32 in memory."""
    shape = tensor_types(op.rest.partition(" : ")[2])[-1].shape
    small = math.prod(shape[-2:]) < _LARGE
    return (
        "if fewer bits are enough, pass input_precision='tf32' or bfloat16 operands; input_precision='tf32x3' "
        f"is as exact as 'ieee'{', and needs larger tiles: with these it is slower' if small else ''}"
    )


RULE = Rule("dot-on-fma", "tl.dot without tensor cores", check, by_options=True)
