"""64-bit index arithmetic on tensors in a loop."""

from collections.abc import Iterator

from kperf.diagnose.kernel import LOOPS, Kernel, own
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding

_ARITHMETIC = ("arith.muli", "arith.addi", "arith.divsi", "arith.remsi", "arith.subi")
_SMALL = 128


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of integer operations on tensors of i64 that each iteration does."""
    for loop in kernel.named(*LOOPS):
        for op in own(loop):
            types = tensor_types(op.rest) if op.name in _ARITHMETIC else []
            if types and types[0].element == "i64" and types[0].size >= _SMALL:
                yield kernel.finding(
                    RULE.id,
                    op,
                    "medium",
                    f"each iteration computes {types[0].size} indices in 64 bits, which takes two to four times the "
                    "instructions and twice the registers",
                    "compute the tile's origin once in 64 bits, outside of the loop, and the offsets inside in 32",
                    {"elements": types[0].size},
                    confidence="medium",
                    estimate=(1.15, 1.0, 1.5),
                )


RULE = Rule("int64-index", "64-bit index arithmetic in a loop", check)
