"""Iterations of a loop that do nothing, because a mask keeps only positions before an end, or from a begin on."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS, inside, own
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.arithmetic import COMPARE
from kperf.ir.loops import BOUNDS
from kperf.ir.next_iteration import NextIteration
from kperf.ir.outcomes import Outcomes
from kperf.ir.ttgir import Module, Operation
from kperf.ir.values import READS, Value, Values, iterations_of, joined

_LESS = ("slt", "sle", "ult", "ule")
_GREATER = ("sgt", "sge", "ugt", "uge")
_LOWER, _UPPER, _ = BOUNDS
_DECIDES = ("scf.if", "cf.cond_br", "scf.condition")
_WRAPS = ("arith.remsi", "arith.remui", "arith.andi", "arith.xori")
"""After which positions do not grow."""
_MOST = 1 << 20
"""Iterations that are counted."""
_OF_CTA = ("tt.get_program_id", *LOOPS)


@dataclass(frozen=True)
class Idle:
    """Iterations of a loop that do nothing: those behind an end, or before a begin.

    mask: the comparison that says so. count: how many do nothing, of all; None where what they depend on is read from
    memory.
    """

    loop: Operation
    mask: Operation
    is_behind: bool
    count: tuple[int, int] | None


@dataclass(frozen=True)
class _Limit:
    """A comparison of the positions of a loop's iterations with a number.

    distances: left minus right in the first iteration. step: by how much they grow in each. reads: lines of the loads
    on which it depends. is_known: whether it depends on nothing else but numbers of the launch.
    """

    mask: Operation
    distances: NDArray[np.int64]
    step: int
    reads: frozenset[int]
    arguments: frozenset[str]
    is_known: bool

    @property
    def predicate(self) -> str:
        """`slt` and the like."""
        return self.mask.rest.split(",")[0].strip()

    @property
    def holds_later(self) -> bool:
        """Whether the comparison holds in later iterations, and not in earlier ones."""
        return (self.predicate in _GREATER) == (self.step > 0)

    def idle(self, count: int, *, is_behind: bool) -> int:
        """Of so many iterations those whose positions all lie behind the end, or before the begin."""
        ends = np.array([self.distances.min(), self.distances.max()])[:, None] + self.step * np.arange(count)
        return int(np.all(COMPARE[self.predicate](ends, 0) == (self.holds_later == is_behind), axis=0).sum())


def idle_iterations(kernel: Kernel) -> Iterator[Idle]:
    """By the TTIR, in which each load still stands in the iteration that uses it; none of a kernel without one."""
    text = kernel.compiled.texts.get("ttir", "")
    if "scf.for" not in text:
        return
    module = Module(kernel.compiled.moved.text(text))
    numbers = kernel.known | kernel.numbers
    values = Values(module, numbers)
    for loop in module.walk():
        if loop.name == "scf.for":
            yield from _of_loop(module, values, loop, frozenset(numbers))


def _of_loop(module: Module, values: Values, loop: Operation, known: frozenset[str]) -> Iterator[Idle]:
    """Of a loop without branches by the iteration, which may leave out the same work."""
    if any(op.name == "scf.if" and _depends(values, op, 0, loop) for op in inside(loop)):
        return
    later = NextIteration(values, loop)
    limits = [limit for op in own(loop) if (limit := _limit(values, later, loop, op, known)) is not None]
    for key in dict.fromkeys((limit.reads, limit.arguments) for limit in limits):
        alike = [limit for limit in limits if (limit.reads, limit.arguments) == key]
        for is_behind in (True, False):
            count = None
            if alike[0].is_known and (count := _count(values, loop, alike, known, is_behind=is_behind)) is None:
                continue
            if count is None and _is_asked(module, values, loop, alike[0].reads, is_behind=is_behind):
                continue
            decided = {limit.mask.line: limit.holds_later == is_behind for limit in alike}
            if Outcomes(module, loop, decided).is_idle:
                yield Idle(loop, alike[0].mask, is_behind, count)


def _limit(values: Values, later: Values, loop: Operation, op: Operation, known: frozenset[str]) -> _Limit | None:
    """Of a comparison whose positions are others in each iteration, and are not read in it."""
    if op.name != "arith.cmpi" or op.rest.split(",")[0].strip() not in (*_LESS, *_GREATER):
        return None
    left, right = values.operand(op, 0), values.operand(op, 1)
    next_left, next_right = later.operand(op, 0), later.operand(op, 1)
    if left is None or right is None or next_left is None or next_right is None:
        return None
    distances = left.numbers - right.numbers
    steps = np.unique(next_left.numbers - next_right.numbers - distances)
    sources = [source for place in (0, 1) for source in values.sources(op, place, until=READS)]
    reads = frozenset(source.line for source in sources if source.name in READS)
    its_own = [one for one in sources if any(_depends(values, one, place, loop) for place in range(len(one.operands)))]
    if len(steps) > 1 or any(one.name in (*READS, *_WRAPS) for one in its_own):
        return None
    extent = 1 + sum(int(np.ptp(one.numbers)) for one in (left, right) if not one.scattered)
    of_cta = any(source.name == "tt.get_program_id" for source in sources)
    if not abs(steps[0]) >= extent > of_cta:  # a window of a few positions beside the CTA's own one is none of them all
        return None
    if reads and _is_passed(op, distances, int(steps[0]), (left, right)):
        return None
    both = joined(distances, [left, right])
    is_known = not reads and not of_cta and both.iterations == {loop.line} and both.arguments <= known
    return _Limit(op, distances, int(steps[0]), reads, both.arguments, is_known)


def _is_passed(op: Operation, distances: NDArray[np.int64], step: int, compared: Iterable[Value]) -> bool:
    """Whether a constant lies before the loop's positions, which count on from a number that is loaded.

    Of `first + start + tl.arange(0, B) >= 0` only negative positions do nothing. Loaded numbers are sampled as large.
    """
    if all(one.loaded or one.arguments or one.program or one.iterations for one in compared):
        return False
    predicate = op.rest.split(",")[0].strip()
    holds_later = (predicate in _GREATER) == (step > 0)
    return bool(np.all(COMPARE[predicate](distances, 0) == holds_later))


def _depends(values: Values, op: Operation, place: int, loop: Operation) -> bool:
    """Whether an operand is another one in each iteration of a loop."""
    value = values.operand(op, place)
    return value is None or loop.line in value.iterations


def _count(
    values: Values, loop: Operation, limits: Sequence[_Limit], known: frozenset[str], *, is_behind: bool
) -> tuple[int, int] | None:
    """(Iterations that do nothing, all); None if the launch does not say, or it makes no difference."""
    if (iterations := iterations_of(values, loop, known)) is None:
        return None
    count = min(iterations, _MOST)
    idle = min(limit.idle(count, is_behind=is_behind) for limit in limits)
    return (idle, count) if count >= MEDIUM_GAIN * max(count - idle, 1) else None


def _is_asked(module: Module, values: Values, loop: Operation, reads: frozenset[int], *, is_behind: bool) -> bool:
    """Whether what decides how often a loop runs is read from memory too, or a branch asks for the CTA's positions."""
    lower, upper = (_reads(values.sources(loop, place)) for place in (_LOWER, _UPPER))
    own_reads, bound = (reads - lower, upper - lower) if is_behind else (reads, lower)
    branches = [op for op in module.walk() if op.name in _DECIDES]
    asked = [values.sources(op, 0, until=READS) for op in branches]
    by_position = [sources for sources in asked if any(source.name in _OF_CTA for source in sources)]
    return not own_reads or bool(bound) or any(own_reads & _reads(sources) for sources in by_position)


def _reads(operations: Iterable[Operation]) -> frozenset[int]:
    return frozenset(op.line for op in operations if op.name in READS)
