"""A lookup, or a test of membership, that compares each element with all entries of a table."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.comparisons import (
    GATHER_CYCLES,
    axis_of,
    beside,
    comparison,
    is_along,
    is_broadcast,
    is_entry,
    is_given,
    loaded,
    unshaped,
)
from kperf.diagnose.analyses.dropped import moved_by
from kperf.diagnose.analyses.loops import carried, innermost
from kperf.diagnose.analyses.occupancy import (
    arithmetic_cycles,
    arithmetic_of_cta,
    bytes_of_cta,
    bytes_or_mma_cycles,
    mma_cycles,
)
from kperf.diagnose.analyses.one_hot import OneHot, one_hot_products
from kperf.diagnose.analyses.picked import picked_rows
from kperf.diagnose.analyses.waves import COPIED_SHARE
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import ATOMICS, LOOPS, MMAS, STORES, inside, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SECTOR_BYTES, SEVERE_GAIN
from kperf.ir.layouts import TensorType, tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_EQUAL = ("eq",)
_ADDITIONS = ("arith.addi", "arith.addf")
_PRODUCTS = ("arith.muli", "arith.mulf")
_ANY = ("arith.ori", "arith.maxsi", "arith.maxui", "arith.maxnumf", "arith.maximumf")
_COMPARED, _SELECTED = 3, 2
"""Instructions at full rate for an entry: a comparison at half rate, and what combines it with the others; of a lookup
a selection at half rate too. 3 of membership estimate 40 x on an H200; on an H100, whose memory is slower by a third,
33.1 x were measured."""
_READ = 2
"""Of a lookup by an address: the address, and the comparison of a mark with 0."""


@dataclass(frozen=True)
class _Lookup:
    """compared: the comparison. operations: what compares and combines. elements: that are looked up.

    entries: of the table. is_membership: whether only the presence of an entry is wanted. around: the loop over the
    entries; None where they are an axis of a tile. shuffles: of 32 lanes, to combine the entries of a tile.
    """

    compared: Operation
    operations: tuple[Operation, ...]
    elements: int
    entries: int
    is_membership: bool
    around: Operation | None = None
    shuffles: float = 0.0


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of lookups of single numbers, of products that copy rows, and of rows that a loop picks from a tile."""
    yield from _of_numbers(kernel)
    yield from _of_picked_rows(kernel)
    for one in one_hot_products(kernel):
        yield from _of_rows(kernel, one)


def _of_rows(kernel: Kernel, one: OneHot) -> Iterator[Finding]:
    """Of a product with a one-hot operand, where a load of each element's row is faster.

    Of length_regulator it estimates 4.5 x, and 6.59 x were measured (H200).
    """
    comparing, multiplying = arithmetic_of_cta(kernel, one.made), _mma_cycles(kernel, one.mmas)
    product = {op.line for op in (*one.mmas, *one.made)}
    others = [op for op in kernel.operations if op.line not in product]
    beside = arithmetic_of_cta(kernel, others) + _mma_cycles(kernel, others)
    moved = {_written(access): (access, moved_by(kernel, access)) for access in kernel.accesses}
    table = sum(size for access, size in moved.values() if access.operation.line in one.tables)
    kept = sum(size for _, size in moved.values()) - table
    reading, gathered = _gathered(kernel, one)
    rate = kernel.arch.memory_bytes_per_cycle * COPIED_SHARE
    now = max(multiplying + comparing + beside, (kept + table) / rate)
    gain = now / max(reading + beside, (kept + min(table, gathered)) / rate)
    if gain < MEDIUM_GAIN:
        return
    apart = f" (if no two of the {one.entries} intervals overlap)" if one.is_of_intervals else ""
    yield kernel.finding(
        RULE.id,
        one.mmas[0],
        "high" if gain >= SEVERE_GAIN and not one.is_of_intervals else "medium",
        f"an operand of tl.dot is made of comparisons, and for each of {one.elements} elements it holds at most one 1 "
        f"among {one.entries} entries{apart}: the product copies rows of the other operand, in some "
        f"{multiplying + comparing:.0f} cycles of an SM, and to load these rows takes {reading:.0f}",
        _BY_INTERVAL if one.is_of_intervals else _BY_ROW,
        {
            "entries": one.entries,
            "elements": one.elements,
            "product_cycles": multiplying,
            "comparison_cycles": comparing,
            "read_cycles": reading,
        },
        confidence="low" if one.is_of_intervals else "medium",
        estimate=(gain, 1.0, 2 * gain),
    )


def _of_picked_rows(kernel: Kernel) -> Iterator[Finding]:
    """Of all of them together, as each has the same cause.

    Of two rows of tiles of 32 x 32 it estimates 1.8 x, and 1.59 x were measured (H200).
    """
    written = kernel.as_written
    picked = list(picked_rows(written)) if written is not None else []
    if written is None or not picked:
        return
    frames = {frame_of(one.reduction) for one in picked}
    combining = [(frame_of(op), _combining(kernel, op)) for op in kernel.named("tt.reduce")]
    picking = arithmetic_of_cta(written, [op for one in picked for op in one.made])
    picking += sum(cycles for frame, cycles in combining if frame in frames)
    computing = arithmetic_of_cta(written, written.operations) + _mma_cycles(written, written.operations)
    computing += sum(cycles for _, cycles in combining)
    reading = sum(written.times(one.reduction) * one.tile.size / one.tile.shape[one.axis] for one in picked)
    moving = bytes_of_cta(kernel) / (kernel.arch.memory_bytes_per_cycle * COPIED_SHARE)
    gain = max(computing, moving) / max(computing - picking + reading / kernel.arch.warp_size, moving)
    if gain < MEDIUM_GAIN:
        return
    for one in picked:
        what = _LINE_OF_TILE[one.axis == len(one.tile.shape) - 1]
        yield kernel.finding(
            RULE.id,
            one.reduction,
            "high" if gain >= SEVERE_GAIN else "medium",
            f"each iteration takes one {what} of a tile of {' x '.join(map(str, one.tile.shape))} in registers by a "
            "reduction of the whole tile, of which a mask keeps that "
            f"{what}: such reductions take {picking / computing:.0%} of the time in which the kernel computes",
            (_FROM_MEMORY if one.is_loaded else _FROM_SCRATCH).format(what),
            {"entries": one.tile.shape[one.axis], "picking_cycles": picking, "other_cycles": computing - picking},
            confidence="medium",
            estimate=(gain, 1.0, 1.5 * gain),
        )


def _written(access: Access) -> tuple[object, ...]:
    """Of the loads that a loop's pipeline issues ahead of it, the same as of the loop's own."""
    return frame_of(access.operation), access.operation.name, access.value.arguments


def _mma_cycles(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Of an SM, for a CTA's MMAs among these, as often as it does each."""
    return sum(kernel.times(op) * mma_cycles(kernel, [op]) for op in operations)


def _gathered(kernel: Kernel, one: OneHot) -> tuple[float, float]:
    """Cycles of an SM to load each element's row from L2, behind a search for its interval; and their bytes."""
    times = kernel.times(one.mmas[0]) / ((kernel.iterations(one.around) or 1) if one.around is not None else 1)
    size = times * one.elements * max(one.columns * one.bytes, SECTOR_BYTES)
    steps = one.entries.bit_length() if one.is_of_intervals else 0
    searching = times * one.elements * steps * GATHER_CYCLES / kernel.arch.warp_size
    return searching + size / H200.l2_bytes_per_cycle, size


def _of_numbers(kernel: Kernel) -> Iterator[Finding]:
    """Of all lookups of a CTA, or of a loop, together: the costliest is named, if reading entries is faster."""
    lookups = [*_by_loops(kernel), *_by_tiles(kernel)]
    if not lookups:
        return
    made = tuple(op for one in lookups for op in one.operations)
    costliest = max(lookups, key=lambda one: _cycles(kernel, one))
    alike = [one for one in lookups if _loop(one) is _loop(costliest)]
    around = beside(kernel, costliest.compared, made, costliest.around)
    others, least = arithmetic_cycles(kernel, around), bytes_or_mma_cycles(kernel, around) / COPIED_SHARE
    by_comparison = sum(_cycles(kernel, one) for one in alike)
    read = [_read_cycles(kernel, one) for one in alike]
    by_address = max(others + sum(computing for computing, _ in read), least + sum(moving for _, moving in read))
    gain = max(by_comparison + others, least) / by_address
    if gain < MEDIUM_GAIN:
        return
    elements = sum(one.elements for one in alike)
    purpose = "to find whether it is one of them" if costliest.is_membership else "to find the one at its place"
    yield kernel.finding(
        RULE.id,
        costliest.compared,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"each of {elements} elements is compared with all {costliest.entries} entries of a table, {purpose}: this "
        f"takes some {by_comparison:.0f} cycles of an SM, and all other work takes {max(others, least):.0f} cycles",
        _MARKED if costliest.is_membership else _LOADED,
        {
            "entries": costliest.entries,
            "elements": elements,
            "comparison_cycles": by_comparison,
            "read_cycles": sum(max(one) for one in read),
            "other_cycles": max(others, least),
        },
        confidence="medium",
        estimate=(gain, 1.0, 1.5 * gain),
    )


_LOADED = (
    "load each element's entry by its code, tl.load(table + code, mask=(code >= 0) & (code < n), other=0), or "
    "tl.gather(entries, code, axis=0) of entries that are in registers, if no code is outside; where a code is made of "
    "bits of its value, as in small floats, shifts and masks compute it"
)
_MARKED = (
    "mark the entries once before the launch in a table with a byte for each possible number (a table for each row of "
    "entries, if each row has its own; without padding such as -1), marks.scatter_(0, entries, 1), and load the marks: "
    "tl.load(marks + x) != 0; if the numbers are too large for such a table, sort the entries and search by halving"
)


_BY_ROW = (
    "load each element's row by its index, without tl.dot: tl.load(table + index[:, None] * stride + column[None, :], "
    "mask=((index >= 0) & (index < n))[:, None], other=0), and multiply it by its weight, if it has one"
)
_BY_INTERVAL = (
    "nothing in the code says that the intervals do not overlap; if they do not, find the interval of each element by "
    "halving in their sorted ends (count += tl.where(tl.load(end + count + half - 1) <= element, half, 0) for half in "
    "the powers of two from the largest down), and load its row, without tl.dot: tl.load(table + count[:, None] * "
    "stride + column[None, :])"
)


_LINE_OF_TILE = ("row", "column")
_FROM_MEMORY = "load the {0} itself by its address in each iteration, as the tile's numbers are in memory"
_FROM_SCRATCH = (
    "store the tile to a scratch buffer in memory once before the loop, with tl.debug_barrier() after it, and load the "
    "{0} from the buffer in each iteration"
)


def _loop(lookup: _Lookup) -> Operation | None:
    """The loop around a lookup."""
    return next(iter(loops_around(lookup.compared if lookup.around is None else lookup.around)), None)


def _cycles(kernel: Kernel, lookup: _Lookup) -> float:
    """Of an SM, to compare and to combine. An SM starts a shuffle of one warp a cycle."""
    each = _COMPARED if lookup.is_membership else _COMPARED + _SELECTED
    return each * lookup.entries * lookup.elements / kernel.arch.fp32_per_cycle + lookup.shuffles


def _read_cycles(kernel: Kernel, lookup: _Lookup) -> tuple[float, float]:
    """Of an SM, to read each element's entry, and of memory.

    Marks lie in memory: side by side where the elements are numbered, else each in a sector of its own.
    """
    computing = _READ * lookup.elements / kernel.arch.fp32_per_cycle
    gathered = lookup.elements * GATHER_CYCLES / kernel.arch.warp_size
    if not lookup.is_membership:
        return computing + gathered, 0.0
    if _is_numbered(kernel, lookup):
        return computing, lookup.elements / kernel.arch.memory_bytes_per_cycle / COPIED_SHARE
    return computing + gathered, lookup.elements * SECTOR_BYTES / kernel.arch.memory_bytes_per_cycle / COPIED_SHARE


def _is_numbered(kernel: Kernel, lookup: _Lookup) -> bool:
    """Whether the elements are no data, but numbers in order."""
    values = [kernel.values.operand(lookup.compared, place) for place in (0, 1)]
    return any(value is not None and not value.loaded for value in values)


def _by_loops(kernel: Kernel) -> Iterator[_Lookup]:
    """Loops over the entries that do nothing but compare."""
    for loop in innermost(kernel):
        entries, done = kernel.iterations(loop), list(inside(loop))
        if not entries or any(op.name in (*STORES, *ATOMICS, *MMAS, *LOOPS, "tt.reduce") for op in done):
            continue
        for place, (begin, _) in enumerate(carried(loop)):
            combined = kernel.values.maker(done[-1], place)
            if combined is not None and begin in combined.operands and tensor_types(combined.rest):
                yield from _of_iteration(kernel, loop, combined, begin, entries)


def _of_iteration(kernel: Kernel, loop: Operation, op: Operation, begin: str, entries: int) -> Iterator[_Lookup]:
    """What an iteration's comparison with an entry is for, of what combines it with what the loop carries."""
    is_select = op.name == "arith.select" and begin in op.operands[1:]
    at = 3 - op.operands.index(begin) if is_select else 1 - op.operands.index(begin)
    if is_select:
        hit, value = comparison(kernel, op, 0, _EQUAL), _value(kernel, op, at, loop)
    elif op.name in _ANY:
        hit, value = comparison(kernel, op, at, _EQUAL), None
    elif op.name in _ADDITIONS:
        hit, value = _chosen(kernel, kernel.values.maker(op, at), loop)
    else:
        return
    if hit is None or (op.name in _ADDITIONS and value is None):
        return
    found = kernel.values.maker(op, at)
    is_membership = op.name in _ANY or (is_select and found is not None and found.name == "arith.constant")
    size = tensor_types(op.rest)[-1].size
    compared_with = [place for place in (0, 1) if is_given(kernel, hit, 1 - place, loop)]
    if is_membership and hit.name == "arith.cmpf":  # a float is no place in a table
        return
    for place in compared_with:
        load = loaded(kernel, hit, place)
        is_of_table = load is not None and is_entry(kernel, load, loop)
        if (is_membership and is_of_table) or (value is not None and _is_count(kernel, hit, place, loop)):
            yield _Lookup(hit, tuple(inside(loop)), size, entries, is_membership, loop)


def _chosen(kernel: Kernel, op: Operation | None, loop: Operation | None) -> tuple[Operation | None, Operation | None]:
    """The comparison and the load of `where(hit, load, 0)` or `hit * load`."""
    if op is None or op.name not in ("arith.select", *_PRODUCTS):
        return None, None
    places = [(0, 1)] if op.name == "arith.select" else [(0, 1), (1, 0)]
    pairs = ((comparison(kernel, op, hit, _EQUAL), _value(kernel, op, value, loop)) for hit, value in places)
    return next(((hit, value) for hit, value in pairs if hit is not None and value is not None), (None, None))


def _value(kernel: Kernel, op: Operation, place: int, loop: Operation | None) -> Operation | None:
    """The load of a value; in a loop another one in each iteration."""
    load = loaded(kernel, op, place)
    return load if load is not None and (loop is None or is_entry(kernel, load, loop)) else None


def _is_count(kernel: Kernel, op: Operation, place: int, loop: Operation) -> bool:
    """Whether one side is the number of the iteration and the other side data."""
    number, given = kernel.values.operand(op, place), kernel.values.operand(op, 1 - place)
    counts = number is not None and not number.loaded and loop.line in number.iterations
    return counts and (given is None or given.loaded)


def _by_tiles(kernel: Kernel) -> Iterator[_Lookup]:
    """Reductions of comparisons, or of the values that they choose, along the axis of the entries."""
    for op in kernel.named("tt.reduce"):
        types = tensor_types(kernel.module.lines[op.last_line])
        if len(op.operands) != 1 or not types or len(types[0].shape) < 2:
            continue
        axis, combined = axis_of(op), {one.name for one in inside(op)}
        made: tuple[Operation, ...]
        hit = comparison(kernel, op, 0, _EQUAL)
        if hit is not None and (combined & {*_ANY} or (combined & {*_ADDITIONS} and _is_any(kernel, op))):
            found = hit.name != "arith.cmpf" and _is_in_table(kernel, hit, axis)
            made, is_membership = (op, hit), True
        else:
            choice = unshaped(kernel, op, 0)
            hit, value = _chosen(kernel, choice, None)
            found = choice is not None and hit is not None and value is not None and _is_code(kernel, choice, hit, axis)
            made, is_membership = tuple(one for one in (op, choice, hit) if one is not None), False
        if found and hit is not None and tensor_types(hit.rest)[0].shape == types[0].shape:
            entries = types[0].shape[axis]
            shuffles = _shuffles(kernel, types[0], axis)
            yield _Lookup(hit, made, types[0].size // entries, entries, is_membership, shuffles=shuffles)


def _is_any(kernel: Kernel, reduction: Operation) -> bool:
    """Whether a sum is only compared with 0: the number of equal entries does not matter."""
    users = [
        op for op in kernel.operations if any(_is_from(kernel, op, at, reduction) for at in range(len(op.operands)))
    ]
    return bool(users) and all(
        op.name == "arith.cmpi"
        and any((value := kernel.values.operand(op, at)) is not None and not value.numbers.any() for at in (0, 1))
        for op in users
    )


def _is_from(kernel: Kernel, op: Operation, place: int, made: Operation) -> bool:
    """Whether an operation that computes reads what another one makes."""
    return op.name.startswith(("arith.cmp", "arith.add", "arith.mul", "arith.sel", "tt.store", "math.")) and (
        unshaped(kernel, op, place) is made
    )


def _is_in_table(kernel: Kernel, hit: Operation, axis: int) -> bool:
    """Whether elements are compared with a loaded table, which is none of the elements' own tensors."""
    for place in (0, 1):
        load, others = loaded(kernel, hit, place), kernel.values.sources(hit, 1 - place)
        if load is not None and is_along(kernel, hit, place, axis) and is_broadcast(kernel, hit, 1 - place, axis):
            return not any(kernel.memory_of(one) & kernel.tensors_of(load) for one in others if one.name == load.name)
    return False


def _is_code(kernel: Kernel, choice: Operation, hit: Operation, axis: int) -> bool:
    """Whether data are compared with the places of a table, of which each place has a value of its own."""
    values = [place for place in range(len(choice.operands)) if is_along(kernel, choice, place, axis)]
    for place in (0, 1):
        number, given = kernel.values.operand(hit, place), kernel.values.operand(hit, 1 - place)
        counts = number is not None and not (number.loaded or number.program) and is_along(kernel, hit, place, axis)
        is_data = (given is None or given.loaded) and is_broadcast(kernel, hit, 1 - place, axis)
        if values and counts and is_data:
            return True
    return False


def _combining(kernel: Kernel, reduction: Operation) -> float:
    """Cycles of an SM for the exchanges of a reduction, as often as a CTA does it."""
    types = tensor_types(kernel.module.lines[reduction.last_line])
    return kernel.times(reduction) * _shuffles(kernel, types[0], axis_of(reduction)) if types else 0.0


def _shuffles(kernel: Kernel, tile: TensorType, axis: int) -> float:
    """Cycles of an SM for the exchanges between lanes: log2 of the lanes that share a result, for each one."""
    places = kernel.layouts.elements(tile)  # [warp, register, lane, dimension]
    if places is None:
        return 0.0
    lanes = len(np.unique(places[0, 0, :, axis]))
    results = len(np.unique(np.delete(places[0, :, 0], axis, axis=1), axis=0))
    each = 1 / kernel.arch.warp_size + 1 / kernel.arch.fp32_per_cycle
    return kernel.threads * results * math.log2(lanes) * each


RULE = Rule("lookup-by-comparison", "A lookup that compares with every entry", check)
