"""What makes the compiler cut an access into pieces, by the TTGIR: alignment, masks, strides, layouts."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Literal

import numpy as np

from kperf.diagnose.analyses.sweeps import step_of
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import LOADS, loops_around, mask_place
from kperf.diagnose.reading.strides import descriptor_in_parts, strides_of_one
from kperf.diagnose.thresholds import VECTOR_BYTES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value

Cause = Literal[
    "mask",
    "divided mask",
    "loaded mask",
    "loaded limit",
    "alignment",
    "offset",
    "program",
    "quotient",
    "memory",
    "remainder",
    "stride",
    "descriptor",
    "layout",
]
QUOTIENTS = ("arith.divsi", "arith.divui", "arith.floordivsi", "arith.ceildivsi", "arith.shrsi", "arith.shrui")
_PROGRAM_ID = "tt.get_program_id"
_SHIFTED = 0.5
"""Of a tile's elements, or rows, that another load, iteration or row of the window reads too."""


def in_the_way(  # noqa: PLR0911 (a case a cause)
    kernel: Kernel, access: Access
) -> tuple[Cause, tuple[str, ...]] | None:
    """What forbids larger pieces by the TTGIR, and the arguments that are not known to be 1, or multiples of 16."""
    if access.value.scattered:
        return None
    if descriptor := descriptor_in_parts(kernel, access):
        return "descriptor", (descriptor,)
    if ones := strides_of_one(kernel, access):
        return "stride", ones
    if divisors := wrapped_by(kernel, access):
        return "remainder", divisors
    unknown = _not_divisible(kernel, access.value.arguments)
    if offset_of_rows(access) and access.value.loaded:
        return "memory", ()
    if offset_of_rows(access) and unknown:
        return "alignment", unknown
    if offset_of_rows(access):
        return None if is_window(kernel, access) else _of_unaligned(kernel, access)
    return of_mask(kernel, access)


def of_layout(kernel: Kernel, access: Access) -> tuple[Cause, tuple[str, ...]] | None:
    """Of aligned rows of which a thread has few elements side by side, as tl.join takes the tile and gives its layout.

    Where the compiler does not know that rows are aligned, it chooses such a layout itself: then that is the cause.
    """
    is_narrow = access.thread_bytes < possible_bytes(kernel, access) and not access.value.scattered
    at = frame_of(access.operation) if is_narrow else None
    if at is None or offset_of_rows(access) or (written := kernel.as_written) is None:
        return None
    loads = [op for join in written.named("tt.join") for place in (0, 1) for op in written.values.sources(join, place)]
    return ("layout", ()) if at in [frame_of(op) for op in loads if op.name == "tt.load"] else None


def of_mask(kernel: Kernel, access: Access) -> tuple[Cause, tuple[str, ...]] | None:
    """As `in_the_way`, of the mask of rows that begin at multiples of 16 bytes."""
    if divided := frozenset[str]().union(*(limit.arguments for _, limit in quotients_at_end(kernel, access))):
        return "divided mask", tuple(sorted(divided))
    limits = _limits_of(kernel, access)
    arguments = frozenset[str]().union(*(limit.arguments for limit, _ in limits))
    if unknown := _not_divisible(kernel, arguments):
        return "mask", unknown
    if not _mask_is_data(kernel, access) or _not_divisible(kernel, access.value.arguments):
        return None
    loaded = [name for limit, names in limits if limit.loaded for name in names]
    return ("loaded limit", tuple(dict.fromkeys(loaded))) if loaded else ("loaded mask", ())


def wrapped_by(kernel: Kernel, access: Access) -> tuple[str, ...]:
    """The arguments modulo which indices are taken that lie side by side; empty if there are none.

    Where such a divisor may not be a multiple of 16, the compiler takes any two of the indices to lie apart.
    """
    found: set[str] = set()
    for op in kernel.values.sources(access.operation, 0) if access.has_neighbours else ():
        if op.name in ("arith.remsi", "arith.remui") and _along(op) in (None, access.contiguous):
            index, divisor = kernel.values.operand(op, 0), kernel.values.operand(op, 1)
            if index is not None and divisor is not None and side_by_side(index):
                found |= set(_not_divisible(kernel, divisor.arguments))
    return tuple(sorted(found))


def offset_of_rows(access: Access) -> int:
    """Bytes by which contiguous rows begin behind multiples of 16, at most; 0 where none does so."""
    if access.contiguous is None:
        return 0
    return int(np.max(np.take(access.value.numbers, 0, axis=access.contiguous) % VECTOR_BYTES))


def _of_unaligned(kernel: Kernel, access: Access) -> tuple[Cause, tuple[str, ...]]:
    """Why the compiler takes rows to begin at any byte: an axis of the grid is named by `program_id`'s argument."""
    if divided := _divided(kernel, access):
        return "quotient", divided
    if axes := _axes_of_one(kernel, access):
        return "program", axes
    return "offset", ()


def _axes_of_one(kernel: Kernel, access: Access) -> tuple[str, ...]:
    """The axes of the grid, of one CTA each, whose number moves rows off a multiple of 16 bytes: there it is 0."""
    programs = {op.rest.split()[0] for op in kernel.values.sources(access.operation, 0) if op.name == _PROGRAM_ID}
    ones = [axis for axis, length in zip("xyz", kernel.grid or (), strict=False) if axis in programs and length == 1]
    first = replace(kernel, first_along="".join(ones)).reread(access)
    return tuple(str("xyz".index(axis)) for axis in ones) if ones and not offset_of_rows(first) else ()


def _divided(kernel: Kernel, access: Access) -> tuple[str, ...]:
    """The arguments of whose quotients an address is computed; empty where the launch's rows begin unaligned.

    A quotient is no multiple of 16 to the compiler, nor among the numbers of `Kernel.values`, whatever it is.
    """
    quotients = [op for op in kernel.values.sources(access.operation, 0) if op.name in QUOTIENTS]
    numbers = (kernel.values.operand(op, 0) for op in quotients)
    names = frozenset().union(*(one.arguments for one in numbers if one is not None))
    launched = kernel.launched_values.operand(access.operation, 0) if kernel.grid is not None else None
    unaligned = launched is not None and offset_of_rows(replace(access, value=launched)) > 0
    return () if unaligned else tuple(sorted(names))


def is_window(kernel: Kernel, access: Access) -> bool:
    """Whether rows begin at other places of the same elements: neighbours that a sum over a window reads.

    Another load, another iteration of a loop, or another row of the tile begins there.
    """
    numbers = access.value.numbers
    others = [
        one.value.numbers
        for one in kernel.accesses
        if one.operation.name == access.operation.name
        and one.value.arguments == access.value.arguments
        and not np.array_equal(one.value.numbers, numbers)
    ]
    steps = [step_of(kernel, loop, access) for loop in loops_around(access.operation)]
    others += [numbers + step for step in steps if step]
    return _has_shifted_rows(kernel, access) or any(np.isin(numbers, other).mean() > _SHIFTED for other in others)


def _has_shifted_rows(kernel: Kernel, access: Access) -> bool:
    """Whether the rows of a tile reach into one another: a column of it for each tap of a window.

    What a mask leaves out of each row does not count: a row may be padded to a power of two.
    """
    along = access.contiguous
    if along is None:
        return False
    begins = np.unique(np.take(access.value.numbers, 0, axis=along))
    kept = np.moveaxis(kernel.kept(access.operation, access.value.numbers.shape), along, -1)
    row = int(kept.sum(axis=-1).max()) * access.tensor.bytes
    return len(begins) > 1 and bool(np.mean(np.diff(begins) < row) >= _SHIFTED)


def _along(op: Operation) -> int | None:
    """The dimension of a matrix along which a row or a column of indices runs; None of whole tiles."""
    across = re.search(r"slice<\{dim = ([01]), parent = #\w+\}>", op.rest)
    return 1 - int(across[1]) if across is not None else None


def side_by_side(index: Value) -> bool:
    """Whether the indices of a row follow one another."""
    return index.numbers.shape[-1:] > (1,) and bool(np.all(np.diff(index.numbers, axis=-1) == 1))


def _runs_along(op: Operation, index: Value, axis: int | None) -> bool:
    """Whether the indices that an operation compares lie side by side along this dimension of its tile."""
    if axis is None or index.numbers.ndim <= max(axis, 1):  # of fewer dimensions than the tile
        return _along(op) in (None, axis) and side_by_side(index)
    return index.numbers.shape[axis] > 1 and bool(np.all(np.diff(index.numbers, axis=axis) == 1))


def _mask_is_data(kernel: Kernel, access: Access) -> bool:
    """Whether the mask is computed from what was read from memory: each element may have its own."""
    mask = kernel.values.operand(access.operation, mask_place(access.operation))
    return mask is not None and mask.loaded


def quotients_at_end(kernel: Kernel, access: Access) -> list[tuple[Operation, Value]]:
    """The comparisons with which a mask ends, along the contiguous dimension, at a quotient of arguments, and that."""
    return [
        (op, limit)
        for op, limit in _ends(kernel, access)
        if limit.arguments and any(one.name in QUOTIENTS for one in kernel.values.sources(op, 1))
    ]


def mask_limits(kernel: Kernel, access: Access) -> frozenset[str]:
    """Arguments at which a mask ends along the contiguous dimension."""
    return frozenset[str]().union(*(limit.arguments for _, limit in _ends(kernel, access)))


def _limits_of(kernel: Kernel, access: Access) -> list[tuple[Value, list[str]]]:
    """The numbers at which a mask ends along the contiguous dimension, each with the names of what is loaded for it."""
    found: list[tuple[Value, list[str]]] = []
    for op, limit in _ends(kernel, access):
        loads = (one for one in kernel.values.sources(op, 1, until=LOADS) if one.name in LOADS)
        found.append((limit, [_variable(one) for one in loads if not tensor_types(one.rest)]))
    return found


def _ends(kernel: Kernel, access: Access) -> Iterator[tuple[Operation, Value]]:
    """The comparisons of a mask that end it along the contiguous dimension, and at what."""
    todo = [kernel.values.maker(access.operation, mask_place(access.operation))]
    while todo:
        op = todo.pop()
        if op is None:
            continue
        if op.name in ("arith.andi", "tt.broadcast", "tt.expand_dims", "ttg.convert_layout"):
            todo += [kernel.values.maker(op, place) for place in range(len(op.operands))]
        elif op.name == "arith.cmpi":
            index, limit = kernel.values.operand(op, 0), kernel.values.operand(op, 1)
            if index is not None and limit is not None and _runs_along(op, index, access.contiguous):
                yield op, limit


def _variable(op: Operation) -> str:
    """The variable to which the source assigns a result, else its name in the TTGIR without the compiler's number."""
    names = op.location.names if op.location is not None else ()
    return names[-1] if names else re.sub(r"_\d+$", "", op.results[0].removeprefix("%"))


def possible_bytes(kernel: Kernel, access: Access) -> int:
    """Bytes of a thread's share of the contiguous dimension: a power of two, at most 16."""
    numbers, size = access.value.numbers, access.tensor.bytes
    contiguous = [
        length
        for dim, length in enumerate(numbers.shape)
        if length > 1 and np.all(np.diff(np.take(numbers, [0, 1], axis=dim), axis=dim) == size)
    ]
    each = access.tensor.size * size // (kernel.threads)
    bytes_each = min(VECTOR_BYTES, each, max(contiguous, default=1) * size)
    return 1 << (max(bytes_each, 1).bit_length() - 1)


def _not_divisible(kernel: Kernel, names: frozenset[str]) -> tuple[str, ...]:
    known = kernel.parameters
    return tuple(sorted(name for name in names if name in known and not known[name].divisible))
