"""A matrix product written as a broadcast, a multiplication and a sum."""

from collections.abc import Iterator

from kperf.diagnose.kernel import Kernel
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of a sum over a product of three dimensions, whose factors were broadcast along different ones."""
    for op in kernel.named("tt.reduce"):
        types = tensor_types(op.rest) or tensor_types(kernel.module.lines[op.last_line])
        maker = kernel.values.maker(op, 0)
        if not types or len(types[0].shape) != 3 or maker is None or maker.name != "arith.mulf":
            continue
        factors = [kernel.values.maker(maker, place) for place in (0, 1)]
        if all(factor is not None and factor.name == "tt.broadcast" for factor in factors):
            yield kernel.finding(
                RULE.id,
                maker,
                "high",
                f"a product of {'x'.join(map(str, types[0].shape))} elements is summed on the FMA units, which is a "
                "matrix product that the tensor cores could do",
                "write it as tl.dot(a, b) with 16-bit operands; pad a dimension below 16 to 16",
                {"elements": types[0].size},
                estimate=(8.0, 2.0, 16.0),
            )


RULE = Rule("dot-by-hand", "A matrix multiplication without tl.dot", check)
