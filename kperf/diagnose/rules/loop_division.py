"""Division and remainder of index tensors in a loop."""

from collections.abc import Iterator, Sequence

from kperf.diagnose.kernel import LOOPS, Kernel, frame_of, own
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")
_SMALL = 32


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of divisions of tensors, by anything but a power of two, that each iteration does."""
    for loop in kernel.named(*LOOPS):
        divisions = [op for op in own(loop) if op.name in _DIVISIONS]
        for op in divisions:
            types = tensor_types(op.rest)
            if not types or types[0].size < _SMALL:
                continue
            divisor = kernel.values.operand(op, 1)
            fixed = divisor is not None and not divisor.arguments and not divisor.loaded and not divisor.iterations
            number = int(divisor.numbers.flat[0]) if divisor is not None and fixed else 0
            if number > 0 and number & (number - 1) == 0:
                continue
            by = number or "a number known at run time"
            yield kernel.finding(
                RULE.id,
                op,
                "medium",
                f"each iteration divides {types[0].size} indices by {by}, some twenty instructions each",
                "keep quotient and remainder in variables that the loop carries, make the divisor a tl.constexpr, or "
                "loop over the dimensions one by one",
                {"elements": types[0].size, "divisor": number},
                confidence="medium",
                estimate=_gain(kernel, divisions),
            )


def _gain(kernel: Kernel, divisions: Sequence[Operation]) -> tuple[float, float, float]:
    """Without the instructions on the lines of the divisions, by what share of the loops' machine code they are."""
    lines = {(at.file, at.line) for op in divisions if (at := frame_of(op)) is not None}
    loops = [one for one in kernel.code.instructions if kernel.code.depth(one)] if kernel.code is not None else []
    if not lines or not loops:
        return 1.3, 1.0, 2.0
    share = sum(one.frame is not None and (one.frame.file, one.frame.line) in lines for one in loops) / len(loops)
    return 1 / max(1 - share, 1 / 3), 1.0, 8.0  # what is left waits for memory; a loop on one line is not all division


RULE = Rule("loop-division", "Division of indices in a loop", check)
