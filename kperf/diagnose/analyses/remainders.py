"""Remainders of sums that are taken of each term, although one of the whole sum gives the same."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kperf.diagnose.analyses.comparisons import is_given
from kperf.diagnose.analyses.divisions import LEAST_ELEMENTS, divisor_of
from kperf.diagnose.analyses.loops import carried, read
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, MOVES
from kperf.diagnose.reading.operations import LOOPS, inside, loops_around
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

_REMAINDERS = ("arith.remsi", "arith.remui")
_ADDITION = "arith.addi"
_SAME = (*CASTS, *MOVES)
"""What leaves a number the same modulo any other, if it does not overflow."""


@dataclass(frozen=True)
class Sum:
    """A sum whose terms are reduced modulo one number.

    remainders: those that can wait until the sum is whole. loop: that carries it; None of a sum without a loop of its
    own. is_reduced_later: whether the kernel takes the remainder of the whole sum as it is.
    """

    remainders: tuple[Operation, ...]
    loop: Operation | None
    is_reduced_later: bool

    @property
    def around(self) -> Operation | None:
        """The loop in whose iterations the remainders are taken."""
        return next(iter(loops_around(self.remainders[0])), None)


def sums_of_remainders(kernel: Kernel) -> list[Sum]:
    """Of sums that a loop carries, and of those that the code spells out or `tl.sum` computes."""
    by_loops = [one for loop in kernel.named(*LOOPS) for one in _that_all_wait(loop, [*_carried_sums(kernel, loop)])]
    return [*by_loops, *_written_sums(kernel, {op.line for one in by_loops for op in one.remainders})]


def _carried_sums(kernel: Kernel, loop: Operation) -> Iterator[Sum]:
    """Sums with which an iteration does nothing but add and reduce.

    A remainder that an iteration needs, as one that it stores or that is part of an address, cannot wait.
    """
    for place, (begin, end) in enumerate(carried(loop)):
        steps = _steps(loop, begin)
        if not steps or end not in steps[-1].results:
            continue
        after = _after(kernel, loop, place)
        taken = [op for op in steps if op.name in _REMAINDERS] or after
        divisors = {_divisor(kernel, op) for op in taken}
        additions = [op for op in steps if op.name == _ADDITION]
        terms = [one for op in additions for one in _terms(kernel, op) if _divisor(kernel, one) in divisors]
        waiting = tuple(op for op in (*steps, *terms) if op.name in _REMAINDERS and _is_costly(kernel, op))
        if waiting and len(divisors) == 1 and is_given(kernel, waiting[0], 1, loop):
            yield Sum(waiting, loop, bool(after))


def _that_all_wait(loop: Operation, sums: Sequence[Sum]) -> list[Sum]:
    """Those whose remainders wait wherever the compiler has them: it computes a sum again for another layout."""
    waiting = {op.line for one in sums for op in one.remainders}
    needed = [op.location for op in inside(loop) if op.name in _REMAINDERS and op.line not in waiting]
    return [one for one in sums if not any(op.location in needed for op in one.remainders)]


def _steps(loop: Operation, begin: str) -> list[Operation]:
    """What an iteration computes of a number that the loop carries; empty where it is more than a sum modulo another.

    A sum that is added to itself grows too fast to wait.
    """
    names, steps = {begin}, list[Operation]()
    for op in inside(loop):
        used = [name for name in op.operands if name in names]
        if not used or op is loop.regions[-1].operations[-1]:
            continue
        is_dividend = op.name in _REMAINDERS and op.operands[1] not in names
        if len(used) > 1 or not (is_dividend or op.name in (_ADDITION, *_SAME)):
            return []
        names |= set(op.results)
        steps.append(op)
    return steps


def _after(kernel: Kernel, loop: Operation, place: int) -> list[Operation]:
    """The remainders that are taken of what a loop ends with; none where it is used in another way too."""
    names = {loop.results[0], f"{loop.results[0]}#{place}"}
    found = []
    for op in kernel.operations:
        if not names & set(op.operands):
            continue
        if op.name in _REMAINDERS:
            found.append(op)
        elif op.name in _SAME:
            names |= set(op.results)
        else:
            return []
    return found


def _written_sums(kernel: Kernel, known: set[int]) -> Iterator[Sum]:
    """Remainders of sums of remainders by the same number; but for those on the known lines.

    A single one is none of a sum: `(x % n + n) % n` makes a remainder positive.
    """
    sums = {op.line: _all_terms(kernel, op) for op in kernel.named(*_REMAINDERS) if op.line not in known}
    parts = {term.line for terms in sums.values() for term in terms}
    for op in kernel.named(*_REMAINDERS):
        waiting = tuple(term for term in sums.get(op.line, ()) if _is_costly(kernel, term))
        if op.line not in parts and waiting and _numbers(waiting) >= 2 * _numbers([op]):
            yield Sum(waiting, None, is_reduced_later=True)


def _all_terms(kernel: Kernel, remainder: Operation) -> list[Operation]:
    """The remainders by the same number of which a dividend is the sum, and of which their dividends are in turn."""
    found, todo = list[Operation](), [remainder]
    while todo:
        terms = [one for one in _terms(kernel, todo.pop()) if _divisor(kernel, one) == _divisor(kernel, remainder)]
        found += terms
        todo += terms
    return found


def _terms(kernel: Kernel, reader: Operation) -> Iterator[Operation]:
    """The remainders whose sum an operation reads, and that nothing else reads."""
    todo = [(reader, place) for place in ((0,) if reader.name in _REMAINDERS else range(len(reader.operands)))]
    while todo:
        reading, place = todo.pop()
        made = kernel.values.maker(reading, place)
        if made is None or made.parent is not reading.parent or _readers(kernel, made) != [reading]:
            continue
        if made.name in _REMAINDERS:
            yield made
        elif made.name in (_ADDITION, *_SAME) or _is_sum(made):
            todo += [(made, at) for at in range(len(made.operands))]


def _divisor(kernel: Kernel, remainder: Operation) -> str | int:
    """The number by which it divides, or the name of that, whatever its shape."""
    reader, place = remainder, 1
    while (made := kernel.values.maker(reader, place)) is not None and made.name in (*_SAME, "tt.splat"):
        reader, place = made, 0
    return divisor_of(kernel, remainder) or reader.operands[place]


def _is_sum(op: Operation) -> bool:
    return op.name == "tt.reduce" and [one.name for one in inside(op)] == [_ADDITION, "tt.reduce.return"]


def _readers(kernel: Kernel, op: Operation) -> list[Operation]:
    return [other for other in kernel.operations if read(other) & set(op.results)]


def _is_costly(kernel: Kernel, op: Operation) -> bool:
    """Whether it is of many numbers, and no mask of bits."""
    divisor = divisor_of(kernel, op)
    is_mask = divisor > 0 and divisor & (divisor - 1) == 0
    return _numbers([op]) >= LEAST_ELEMENTS and not is_mask


def _numbers(operations: Iterable[Operation]) -> int:
    return sum(types[0].size if (types := tensor_types(op.rest)) else 1 for op in operations)
