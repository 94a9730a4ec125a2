"""Tiles that are loaded and computed with, and then multiplied by a loaded 0 or 1, or replaced by its `tl.where`."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.bound import bound_of
from kperf.diagnose.analyses.comparisons import axis_of
from kperf.diagnose.analyses.dropped import KEPT, gain_without, is_even, moved_by
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.masks import CASTS, FLOATS, MOVES, chooses_one
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, mask_place
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.labels import Labels
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Finding

_PRODUCTS = ("arith.mulf", "arith.muli")
_SHAPED = (*CASTS, *FLOATS, *MOVES, "tt.splat")
_BITS = ("arith.andi", "arith.ori", "arith.xori", "arith.cmpi", "arith.cmpf")
_BYTE = "!tt.ptr<i8>"
_MOVED = ("tt.trans", "tt.reshape", "tt.gather", "tt.join", "tt.split", "tt.scan", "tt.dot", "ttng.warp_group_dot")
"""Behind them an element may be of another row."""
_HANDED_ON = ("scf.yield", "tt.reduce.return", "tt.scan.return", "tt.return")
_MOST_DROPPED = 0.9
"""Share of the rows that the upper end of an estimate takes to be 0."""


@dataclass(frozen=True)
class _End:
    """The operation by which a flag makes an element 0 or a constant; `flag`, `data`: places among its operands.

    loads: of the flag. of_type: whether nothing but the type of what is loaded, one byte, says that it is a flag.
    """

    operation: Operation
    flag: int
    data: int
    loads: tuple[Operation, ...]
    of_type: bool

    @property
    def of(self) -> frozenset[object]:
        """The lines of source on which its flag is loaded."""
        return frozenset(frame_of(load) for load in self.loads)


def check(kernel: Kernel) -> Iterator[Finding]:
    """One finding for each flag, of all loads that are for nothing where it is 0, if memory bounds the kernel."""
    ends = list(_ends(kernel))
    if not ends or bound_of(kernel).unit != "memory":
        return
    labels = Labels(kernel.module, kernel.known)
    for flag in dict.fromkeys(end.of for end in ends):
        alike = [end for end in ends if end.of == flag]
        dropped = _dropped(kernel, labels, alike)
        size = sum(moved_by(kernel, access) for access in dropped)
        if gain_without(kernel, KEPT * size) >= MEDIUM_GAIN:
            yield _finding(kernel, alike, dropped, size)


def _finding(kernel: Kernel, ends: Sequence[_End], dropped: Sequence[Access], size: float) -> Finding:
    end = ends[0]
    flag = kernel.tensors_of(end.loads[0])
    name = " and ".join(sorted(flag)) or "a tensor"
    loaded = " and ".join(sorted({name_of(access.value, kernel) for access in dropped}))
    others = lines_of((one.operation for one in ends), end.operation)
    is_product = end.operation.name in _PRODUCTS
    whole = not tensor_types(end.loads[0].rest)
    return kernel.finding(
        RULE.id,
        end.operation,
        "medium",
        f"{loaded} {'are' if ' and ' in loaded else 'is'} loaded whole, and what is computed of it is then "
        + (f"multiplied by the 0 or 1 of {name}" if is_product else f"replaced by a constant, as {name} says")
        + (f" (likewise on {others})" if others else "")
        + f": {'a CTA' if whole else 'a row'} whose flag drops the result is read for nothing",
        ("branch before the loads, as if flag != 0:, or make the flag" if whole else "make the flag of each row")
        + " a part of the mask of the loads, as tl.load(ptr + at, mask="
        + ("flag != 0" if whole else "(flag != 0)[:, None]")
        + ", other=0); the more of the flags are 0, the fewer bytes move",
        {"dropped_bytes": sum(access.asked_bytes * kernel.times(access.operation) for access in dropped)},
        confidence="low" if end.of_type else "medium",
        estimate=(gain_without(kernel, KEPT * size), 1.0, gain_without(kernel, _MOST_DROPPED * size)),
    )


def _ends(kernel: Kernel) -> Iterator[_End]:
    """Products with a flag, and choices by one between a tile and a constant."""
    for op in kernel.named(*_PRODUCTS, "arith.select"):
        for flag, data in _places(kernel, op):
            found = _flag(kernel, op, flag)
            if found is None:
                continue
            made, of_type = found
            loads = _loads_of_flag(kernel, made)
            if loads and not (of_type and _is_number(kernel, op, data)) and not _decides(kernel, loads):
                yield _End(op, flag, data, loads, of_type)


def _places(kernel: Kernel, op: Operation) -> Sequence[tuple[int, int]]:
    """Which operands of an operation may be a flag, and what it drops."""
    if op.name in _PRODUCTS:
        return [(0, 1), (1, 0)]
    if chooses_one(kernel.values, op):
        return []
    return [(0, data) for data in (1, 2) if _is_constant(kernel, op, 3 - data)]


def _is_constant(kernel: Kernel, op: Operation, place: int) -> bool:
    made = kernel.values.maker(op, place)
    while made is not None and made.name in _SHAPED:
        made = kernel.values.maker(made, 0)
    return made is not None and made.name == "arith.constant"


def _flag(kernel: Kernel, op: Operation, place: int) -> tuple[Operation, bool] | None:
    """What makes a 0 or a 1 of an operand, and whether only its type says so; None where it is another number."""
    made = kernel.values.maker(op, place)
    while made is not None and (made.name in _SHAPED or chooses_one(kernel.values, made)):
        made = kernel.values.maker(made, 0)
    if made is None:
        return None
    if made.name in _BITS:
        return (made, False) if _is_bit(made) else None
    return (made, True) if made.name in READS and _BYTE in made.rest else None


def _is_bit(op: Operation) -> bool:
    if op.name.startswith("arith.cmp"):
        return True
    types = tensor_types(op.rest)
    return types[-1].element == "i1" if types else op.rest.split(" : ")[-1].split(" ")[0] == "i1"


def _loads_of_flag(kernel: Kernel, made: Operation) -> tuple[Operation, ...]:
    """The loads from which a flag is computed; none where an iteration or a reduction has a part in it."""
    sources = [made]
    if made.name not in READS:
        sources += [one for place in range(len(made.operands)) for one in kernel.values.sources(made, place, READS)]
    if any(one.name in (*LOOPS, "tt.reduce", *ATOMICS, *_MOVED) for one in sources):
        return ()
    return tuple(one for one in sources if one.name in READS)


def _is_number(kernel: Kernel, op: Operation, data: int) -> bool:
    """Whether bytes may be numbers of 8 bits: those multiply elements, and the products are added to each other.

    A flag of a row multiplies what a row was reduced to.
    """
    reduced = any(one.name == "tt.reduce" for one in kernel.values.sources(op, data, READS))
    return not reduced or any(
        op in kernel.values.sources(one, place, READS)
        for one in kernel.named("tt.reduce", *ATOMICS)
        for place in range(len(one.operands))
    )


def _decides(kernel: Kernel, loads: Collection[Operation]) -> bool:
    """Whether a branch or a loop depends on the flag already."""
    return any(
        load in kernel.values.sources(op, place)
        for op in kernel.named("scf.if", "cf.cond_br", "scf.condition", "scf.for")
        for place in (BOUNDS if op.name == "scf.for" else (0,))
        for load in loads
    )


def _dropped(kernel: Kernel, labels: Labels, ends: Sequence[_End]) -> list[Access]:
    """The loads that nothing needs but what the flag drops, and whose sectors it drops whole."""
    lines = frozenset(end.operation.line for end in ends)
    needed = {op.line for op, place in _uses(kernel) for op in kernel.values.sources(op, place, but=lines)}
    needed |= {op.line for end in ends for op in kernel.values.sources(end.operation, end.flag)}
    found: dict[int, Access] = {}
    for end in ends:
        for access in _of_end(kernel, labels, end):
            if access.operation.line not in needed and not _has_mask(kernel, end, access):
                found[access.operation.line] = access
    return list(found.values())


def _uses(kernel: Kernel) -> Iterator[tuple[Operation, int]]:
    """What has an effect: operations without a result, atomics, and bounds of loops; and their operands."""
    for op in kernel.operations:
        if op.name == "scf.for":
            yield from ((op, place) for place in BOUNDS)
        elif op.name not in (*_HANDED_ON, "scf.while") and (not op.results or op.name in (*ATOMICS, "scf.if")):
            yield from ((op, place) for place in range(len(op.operands)))


def _of_end(kernel: Kernel, labels: Labels, end: _End) -> Iterator[Access]:
    """The loads from which an operation's data are computed, of whose sectors its flag drops all or nothing."""
    sources = kernel.values.sources(end.operation, end.data, until=READS)
    flag = labels.operand(end.operation, end.flag)
    if flag is None or (flag.numbers.size > 1 and any(one.name in _MOVED for one in sources)):
        return
    for load in (one for one in sources if one.name in LOADS):
        access = kernel.access(load)
        if access is None or (flag.numbers.size > 1 and access.contiguous is None):
            continue
        of_tile = _of_tile(flag.numbers, access, sources)
        if of_tile is not None and is_even(of_tile, access):
            yield access


def _of_tile(flag: NDArray[np.int64], access: Access, sources: Sequence[Operation]) -> NDArray[np.int64] | None:
    """A flag in the shape of the tile from which a reduction has its elements; None where that is not known."""
    tile = access.value.numbers.shape
    if flag.size == 1 or np.unique(flag).size == 1:
        return np.reshape(flag.flat[0], ())
    if flag.shape == tile:
        return flag
    axes = {axis_of(one) for one in sources if one.name == "tt.reduce" and len(tile) == flag.ndim + 1}
    expanded = [np.expand_dims(flag, axis) for axis in axes]
    fitting = [one for one in expanded if all(a in (1, b) for a, b in zip(one.shape, tile, strict=True))]
    return fitting[0] if len(axes) == len(fitting) == 1 else None


def _has_mask(kernel: Kernel, end: _End, access: Access) -> bool:
    """Whether a load's mask or address depends on the flag already."""
    places = (0, mask_place(access.operation))
    sources = [one for place in places for one in kernel.values.sources(access.operation, place)]
    return not end.of.isdisjoint(frame_of(one) for one in sources if one.name in READS)


RULE = Rule(
    "zeroed-after-reading",
    "Rows that are read and multiplied by zero",
    check,
    explained_by=("both-sides-loaded",),
    moves_less=True,
)
