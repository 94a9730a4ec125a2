"""64-bit index arithmetic on tensors in a loop."""

from collections.abc import Iterator

from kperf.diagnose.kernel import LOOPS, Kernel, own
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding

_COSTLY = ("arith.muli", "arith.divsi", "arith.remsi")
_ARITHMETIC = (*_COSTLY, "arith.addi", "arith.subi")
_MANY = 128
"""Elements: those of a whole tile; a row of indices has fewer."""
_SMALL = 32


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of integer operations on tensors of i64 that each iteration does: on a tile, or multiplications of a row."""
    for loop in kernel.named(*LOOPS):
        for op in own(loop):
            types = tensor_types(op.rest) if op.name in _ARITHMETIC else []
            if not types or types[0].element != "i64":
                continue
            many = types[0].size >= _MANY
            if many or (op.name in _COSTLY and types[0].size >= _SMALL):
                yield kernel.finding(
                    RULE.id,
                    op,
                    "low",  # of bfloat16 sums that are as fast as memory, 1.00 x were measured without (H200)
                    f"each iteration computes {types[0].size} indices in 64 bits, which takes two to four times the "
                    "instructions and twice the registers",
                    "compute the tile's origin once in 64 bits, outside of the loop, and the offsets inside in 32; in "
                    "place of a block pointer take a tl.make_tensor_descriptor, whose indices have 32",
                    {"elements": types[0].size},
                    confidence="medium",
                    estimate=(1.05, 1.0, 1.5 if many else 1.3),
                )


RULE = Rule("int64-index", "64-bit index arithmetic in a loop", check)
