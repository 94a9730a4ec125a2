"""A `tl.dot` that the tensor cores do not do."""

import math
from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.operations import mma_element
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding, Level

_LARGE = 128 * 128
"""Results of a tile from which on tf32x3 pays for the parts into which it splits each operand. It takes 1.17 times as
long as 'ieee' for 64 x 64 (H200), 1.19 times on an H100."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of a product in a layout of no MMA."""
    for op in kernel.named("tt.dot"):
        types = tensor_types(op.rest.partition(" : ")[2])
        if not types or kernel.layouts.kind(types[-1].layout) not in ("blocked", "linear"):
            continue
        element = mma_element(op)
        if element == "f32":
            why = "its operands are float32 and input_precision is 'ieee'"
            small = math.prod(types[-1].shape[-2:]) < _LARGE
            advice = (
                "if fewer bits are enough, pass input_precision='tf32' or bfloat16 operands; input_precision='tf32x3' "
                f"is as exact as 'ieee'{', and needs larger tiles: with these it is slower' if small else ''}"
            )
            # Somebody asked for it. bfloat16 gives the most.
            severity: Level = "medium"
            rates = kernel.arch.flop_per_cycle
            estimate = (1.5, 0.85, rates["bf16"] / rates["fp32"])
        else:
            why = f"no MMA of this target takes {element} operands in this shape"
            advice = "use float16, bfloat16, fp8 or int8 operands, and tiles of at least 16 x 8 x 16 (rows, columns, K)"
            severity, estimate = "high", (6.0, 2.0, 16.0)
        yield kernel.finding(
            RULE.id,
            op,
            severity,
            f"tl.dot runs on the FMA units, not on the tensor cores: {why}",
            advice,
            {"operand": element, "result_layout": kernel.layouts.kind(types[-1].layout)},
            estimate=estimate,
        )


RULE = Rule("dot-on-fma", "tl.dot without tensor cores", check)
