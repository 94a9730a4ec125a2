"""Division and remainder of index tensors in a loop."""

from collections.abc import Iterator, Sequence

from kperf.diagnose.kernel import LOOPS, Kernel, frame_of, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")
_SMALL = 32
_MOST = 8.0
"""What is left of the loop waits for memory."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of divisions of tensors, by anything but a power of two, that each iteration does."""
    for loop in kernel.named(*LOOPS):
        divided = [(op, _divisor(kernel, op)) for op in own(loop) if op.name in _DIVISIONS]
        for op, number in divided:
            types = tensor_types(op.rest)
            if not types or types[0].size < _SMALL or (number and number & (number - 1) == 0):
                continue
            gain = _gain(kernel, [other for other, its in divided if (its == 0) == (number == 0)])
            most = 2 * gain - 1 if number else _MOST
            costly = "a number known at run time, some twenty instructions"
            by = f"{number}, a multiplication and shifts" if number else costly
            constant = "" if number else "make the divisor a tl.constexpr, "
            yield kernel.finding(
                RULE.id,
                op,
                "low" if number and gain < MEDIUM_GAIN else "medium",
                f"each iteration divides {types[0].size} indices by {by} each",
                f"keep quotient and remainder in variables that the loop carries, {constant}or loop over the "
                "dimensions one by one",
                {"elements": types[0].size, "divisor": number},
                confidence="medium",
                estimate=(gain, 1.0, most),
            )


def _divisor(kernel: Kernel, op: Operation) -> int:
    """A positive number that is known at compile time; else 0."""
    divisor = kernel.values.operand(op, 1)
    if divisor is None or divisor.arguments or divisor.loaded or divisor.iterations:
        return 0
    return max(int(divisor.numbers.flat[0]), 0)


def _gain(kernel: Kernel, divisions: Sequence[Operation]) -> float:
    """Without the instructions on the lines of the divisions, by what share of the loops' machine code they are."""
    lines = {(at.file, at.line) for op in divisions if (at := frame_of(op)) is not None}
    loops = [one for one in kernel.code.instructions if kernel.code.depth(one)] if kernel.code is not None else []
    if not lines or not loops:
        return 1.3
    share = sum(one.frame is not None and (one.frame.file, one.frame.line) in lines for one in loops) / len(loops)
    return 1 / max(1 - share, 1 / 3)  # a loop on one line is not all division


RULE = Rule("loop-division", "Division of indices in a loop", check)
