"""Random numbers whose arithmetic takes longer than what the kernel does beside them."""

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence

from kperf.diagnose.kernel import Kernel, frame_of, loops_around, own
from kperf.diagnose.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import RANDOM_SHARE
from kperf.ir.layouts import tensor_types
from kperf.ir.locations import Frame
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_ROUNDS = 7
"""Of Philox, the fewest that pass TestU01 (J. Salmon et al., Parallel random numbers: as easy as 1, 2, 3; 2011). Each
has the upper halves of two products."""
_GIVES = 4
"""Numbers that a call of Philox computes."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of calls of Triton's Philox of which one number is used, by their arithmetic beside all else that is done there.

    All else is what the innermost loop does, or the whole of a kernel without one.
    """
    by_line: dict[Frame, list[Operation]] = defaultdict(list)
    for op in kernel.operations:
        if tensor_types(op.rest) and (frame := _caller(op)) is not None:
            by_line[frame].append(op)
    for ops in by_line.values():
        rounds = [op for op in ops if op.name == "tt.mulhiui"]
        if len(rounds) < _ROUNDS or not _is_one_used(ops):
            continue
        around = loops_around(rounds[-1])[:1]
        others = bytes_or_mma_cycles(kernel, list(own(around[0])) if around else kernel.operations)
        random = arithmetic_cycles(kernel, [op for op in ops if loops_around(op)[:1] == around])
        if random >= RANDOM_SHARE * others:
            yield _finding(kernel, rounds[-1], random, others)


def _caller(op: Operation) -> Frame | None:
    """The line that calls Triton's library, of what is done there."""
    inner = op.location.frames[:1] if op.location is not None else ()
    return frame_of(op) if any(frame.in_library for frame in inner) else None


def _is_one_used(ops: Sequence[Operation]) -> bool:
    """Whether the last round has an upper half of a product alone: two numbers and more need a lower half too."""
    names = [op.name for op in ops]
    return names.count("tt.mulhiui") > names.count("arith.muli")


def _finding(kernel: Kernel, where: Operation, random: float, others: float) -> Finding:
    gain = max(random, others) / max(random / _GIVES, others)
    elements = tensor_types(where.rest)[0].size
    return kernel.finding(
        RULE.id,
        where,
        "medium" if random > others else "low",
        f"making {elements} random numbers takes some {random:.0f} cycles of an SM, and all other work on them takes "
        f"{others:.0f}: each call makes {_GIVES} numbers, and the kernel uses one",
        f"use all {_GIVES} numbers: call tl.rand4x or tl.randint4x with a quarter of the offsets, and put the results "
        "together with tl.join and tl.reshape; or pass n_rounds=7 (by default 10). Both draw other numbers from the "
        "same seed: change every kernel that has to draw the same ones, such as the backward pass of a dropout",
        {"random_cycles": random, "other_cycles": others, "elements": elements},
        confidence="medium",
        estimate=(math.sqrt(gain), 1.0, max(gain, 1.1)),
    )


RULE = Rule("random-numbers", "Random numbers that take much of the time", check)
