"""Arithmetic in 64 bits on data of 32 or fewer."""

from collections.abc import Iterator

from kperf.diagnose.kernel import LOADS, Kernel
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding

_SMALL = 128
_PART = 16
"""Of the elements that the kernel loads at once: what is done with fewer, as a scale of each row, costs little.
A division in float64 takes some thirty instructions, two for each element that was loaded."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of the first operation on float64 tensors, if no argument points at float64."""
    if any("f64" in argument.type for argument in kernel.parameters.values()):
        return
    wide = [
        op
        for op in kernel.operations
        if op.name.startswith(("arith.", "math.", "tt.dot", "tt.extern"))
        and op.name != "arith.constant"
        and any(tensor.element == "f64" and tensor.size >= _SMALL for tensor in tensor_types(op.rest))
    ]
    loaded = [tensor.size for op in kernel.named(*LOADS) for tensor in tensor_types(op.rest)]
    if wide and loaded:
        widest = max(tensor.size for op in wide for tensor in tensor_types(op.rest) if tensor.element == "f64")
        few = widest * _PART <= max(loaded)
        yield kernel.finding(
            RULE.id,
            wide[0],
            "low" if few else "high",
            f"{len(wide)} operations are done in float64, though no argument is: twice the registers, and 1/2 (H100) "
            "to 1/64 (others) of float32's rate",
            "convert to tl.float32 instead, and write constants as plain Python floats",
            {"operations": len(wide), "elements": widest},
            estimate=(1.05, 1.0, 1.3) if few else (1.8, 1.0, 8.0),
        )


RULE = Rule("float64", "Arithmetic in float64", check)
