"""Random numbers whose arithmetic takes longer than what the kernel does beside them."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set

from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import loops_around, own
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
_OF_ONE = (
    f"use all {_GIVES} numbers: call tl.rand4x or tl.randint4x with a quarter of the offsets, and put the results "
    "together with tl.join and tl.reshape; or pass n_rounds=7 (by default 10). Both draw other numbers from the "
    "same seed: change every kernel that has to draw the same ones, such as the backward pass of a dropout"
)
_OF_CHOSEN = (
    f"use all {_GIVES} numbers: where {_GIVES} neighbours have one counter, call the generator with a tile of a "
    "quarter of the elements, one for each counter, and interleave its results: tl.reshape(tl.join(tl.join(r0, r2), "
    "tl.join(r1, r3)), (BLOCK,)); the numbers stay the same if the first element's offset is a multiple of 4"
)
_OF_ROUNDS = ("tt.mulhiui", "arith.muli", "arith.xori")


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of calls of Triton's Philox of which an element uses one number, by their arithmetic beside all else done there.

    All else is what the innermost loop does, or the whole of a kernel without one.
    """
    by_line: dict[Frame, list[Operation]] = defaultdict(list)
    for op in kernel.operations:
        if tensor_types(op.rest) and (frame := _caller(op)) is not None:
            by_line[frame].append(op)
    for ops in by_line.values():
        rounds = [op for op in ops if op.name == "tt.mulhiui"]
        used = _numbers_used(kernel, ops) if len(rounds) >= _ROUNDS else {}
        if not used or len(set(used.values())) < len(used):
            continue
        around = loops_around(rounds[-1])[:1]
        others = bytes_or_mma_cycles(kernel, list(own(around[0])) if around else kernel.operations)
        random = arithmetic_cycles(kernel, [op for op in ops if loops_around(op)[:1] == around])
        if random >= RANDOM_SHARE * others:
            yield _finding(kernel, rounds[-1], random, others, is_chosen=not used.keys() <= {op.line for op in ops})


def _caller(op: Operation) -> Frame | None:
    """The line that calls Triton's library, of what is done there."""
    inner = op.location.frames[:1] if op.location is not None else ()
    return frame_of(op) if any(frame.in_library for frame in inner) else None


def _numbers_used(kernel: Kernel, ops: Sequence[Operation]) -> dict[int, int]:
    """What an element uses of calls of Philox, by line of what makes it, and the call: a number, or a choice of some.

    What is computed of two numbers uses both. What `tl.where` chooses between two of a call, by no random number, is
    one: the other one was computed in vain.
    """
    rounds = {op.line for op in ops if op.name in _OF_ROUNDS}
    call = _numbers(kernel, rounds)
    needs = {line: frozenset({line}) for line in call}
    used: set[int] = set()
    for op in kernel.operations:
        if op.line in rounds:
            continue
        needed = [needs.get(maker.line if maker is not None else 0, frozenset()) for maker in _makers(kernel, op)]
        needs[op.line] = frozenset().union(*needed)
        if op.regions or not op.results:
            used |= needs[op.line]
        elif op.name == "arith.select" and (chosen := _choice(needed, call)) is not None:
            needs[op.line], call[op.line] = frozenset({op.line}), chosen
    return {line: call[line] for line in used}


def _numbers(kernel: Kernel, rounds: Set[int]) -> dict[int, int]:
    """By line, the numbers of calls of Philox, which other operations use, and the call: its first product's line."""
    users = (op for op in kernel.operations if op.line not in rounds)
    return {
        maker.line: min(source.line for source in kernel.values.sources(op, place) if source.line in rounds)
        for op in users
        for place, maker in enumerate(_makers(kernel, op))
        if maker is not None and maker.line in rounds
    }


def _makers(kernel: Kernel, op: Operation) -> list[Operation | None]:
    return [kernel.values.maker(op, place) for place in range(len(op.operands))]


def _choice(needed: Sequence[Set[int]], call: Mapping[int, int]) -> int | None:
    """The call between two numbers of which a condition chooses; None where it does not, or is itself random.

    needed: lines of the numbers of which the condition and the two ways are computed.
    """
    condition, *ways = needed
    calls = {call[line] for way in ways for line in way}
    one_each = [len(way) for way in ways] == [1, 1] and ways[0] != ways[1]
    return calls.pop() if one_each and not condition and len(calls) == 1 else None


def _finding(kernel: Kernel, where: Operation, random: float, others: float, *, is_chosen: bool) -> Finding:
    gain = max(random, others) / max(random / _GIVES, others)
    elements = tensor_types(where.rest)[0].size
    return kernel.finding(
        RULE.id,
        where,
        "medium" if random > others else "low",
        f"making {elements} random numbers takes some {random:.0f} cycles of an SM, and all other work on them takes "
        f"{others:.0f}: each call makes {_GIVES} numbers, and "
        + ("each element keeps one of them" if is_chosen else "the kernel uses one"),
        _OF_CHOSEN if is_chosen else _OF_ONE,
        {"random_cycles": random, "other_cycles": others, "elements": elements},
        confidence="medium",
        estimate=(math.sqrt(gain), 1.0, max(gain, 1.1)),
    )


RULE = Rule("random-numbers", "Random numbers that take much of the time", check)
