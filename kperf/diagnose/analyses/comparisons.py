"""Comparisons of elements with the entries of a table, in a loop over the entries or along an axis of a tile."""

import re

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, FLOATS, MOVES, chooses_one, source
from kperf.diagnose.reading.operations import LOADS, loops_around, own
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

GATHER_CYCLES = 4
"""Of an SM, to load 32 entries from a table in L1 at places of no order. An order of magnitude: with it the estimate of
256 codes is 4.3 x, and 5.47 x were measured (H100)."""
_SHAPED = (*CASTS, *MOVES, "tt.splat")


def comparison(kernel: Kernel, op: Operation, place: int, orders: tuple[str, ...]) -> Operation | None:
    """The comparison of which an operand is the result as 0 and 1; None where it is another number.

    orders: ends of the predicates that count, such as `gt` of `ogt` and `sgt`.
    """
    made = kernel.values.maker(op, place)
    while made is not None and (made.name in (*CASTS, *FLOATS) or chooses_one(kernel.values, made)):
        made = kernel.values.maker(made, 0)
    if made is None or made.name not in ("arith.cmpf", "arith.cmpi") or not tensor_types(made.rest):
        return None
    return made if made.rest.split(",")[0].strip().endswith(orders) else None


def unshaped(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    """What makes the numbers of an operand, before they are cast and given a shape."""
    return source(kernel.values, op, place, _SHAPED)


def loaded(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    """The load whose numbers an operand is, in whatever shape."""
    made = unshaped(kernel, op, place)
    return made if made is not None and made.name in LOADS else None


def memory_of_operand(kernel: Kernel, op: Operation, place: int) -> frozenset[str]:
    """The tensors of which an operand is loaded, with those that have bytes in common with them in a launch."""
    loads = (one for one in kernel.values.sources(op, place, until=LOADS) if one.name in LOADS)
    return frozenset().union(*(kernel.memory_of(one) for one in loads))


def is_entry(kernel: Kernel, load: Operation, loop: Operation) -> bool:
    """Whether each iteration loads one number with it, another one than the last iteration."""
    address = kernel.values.operand(load, 0)
    if address is None or loop not in loops_around(load) or loop.line not in address.iterations:
        return False
    return bool(address.numbers.min() == address.numbers.max())


def is_given(kernel: Kernel, op: Operation, place: int, loop: Operation) -> bool:
    """Whether an operand is the same in each iteration of a loop."""
    value = kernel.values.operand(op, place)
    sources = kernel.values.sources(op, place)
    of_iteration = value is not None and loop.line in value.iterations
    return not of_iteration and loop not in sources and not any(loop in loops_around(one) for one in sources)


def is_one_more(kernel: Kernel, addition: Operation, begin: str) -> bool:
    """Whether it adds 1 to what the loop carries."""
    if begin not in addition.operands:
        return False
    added = kernel.values.maker(addition, 1 - addition.operands.index(begin))
    return added is not None and re.search(r"dense<1(\.0+e\+00)?>", added.rest) is not None


def axis_of(reduction: Operation) -> int:
    """Along which it reduces."""
    return int(reduction.rest.partition("axis = ")[2].partition(" ")[0].rstrip("}>") or 0)


def is_along(kernel: Kernel, op: Operation, place: int, axis: int) -> bool:
    """Whether an operand's numbers differ along one axis alone."""
    shape = _broadcast_shape(kernel, op, place)
    return bool(shape) and all((length > 1) == (at == axis) for at, length in enumerate(shape))


def is_broadcast(kernel: Kernel, op: Operation, place: int, axis: int) -> bool:
    """Whether an operand's numbers are the same along an axis."""
    shape = _broadcast_shape(kernel, op, place)
    return bool(shape) and shape[axis] == 1


def beside(
    kernel: Kernel, place: Operation, compared: tuple[Operation, ...], loop: Operation | None
) -> list[Operation]:
    """What a CTA, or an iteration of the loop around, does beside comparisons; loop: that of the comparisons alone."""
    loops = loops_around(place if loop is None else loop)
    around = [op for op in (own(loops[0]) if loops else kernel.operations) if op not in compared]
    return around if loop is None else [op for op in around if loop not in loops_around(op)]


def _broadcast_shape(kernel: Kernel, op: Operation, place: int) -> tuple[int, ...]:
    """Of an operand before it is broadcast; empty where it is not."""
    made = source(kernel.values, op, place)
    types = tensor_types(made.rest) if made is not None and made.name == "tt.broadcast" else ()
    return types[0].shape if types else ()
