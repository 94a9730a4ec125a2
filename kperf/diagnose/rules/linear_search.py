"""A place in a table that is found by comparing each element with all entries."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kperf.diagnose.kernel import ATOMICS, LOADS, LOOPS, MMAS, STORES, Kernel, inside, loops_around, own
from kperf.diagnose.loops import carried, innermost
from kperf.diagnose.masks import CASTS, FLOATS, MOVES, chooses_one
from kperf.diagnose.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_SHAPED = (*CASTS, *MOVES, "tt.splat")
_ORDERS = ("gt", "ge", "lt", "le")
_COMPARED = 3
"""Instructions at full rate for an entry: a comparison at half rate, and an addition."""
_STEP = 5
"""Of a step of a binary search, beside its load: an address, a comparison and a selection at half rate."""
_GATHER_CYCLES = 4
"""Of an SM, to load 32 entries from a table in L1 at places of no order. An order of magnitude: with it the estimate of
256 codes is 4.3 x, and 5.47 x were measured (H100)."""


@dataclass(frozen=True)
class _Search:
    """load: of the table. operations: what compares and counts. elements: that are searched for. entries: of the table.

    around: the loop over the entries; None where they are an axis of a tile.
    """

    load: Operation
    operations: tuple[Operation, ...]
    elements: int
    entries: int
    around: Operation | None = None


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of counts of the entries below an element: such a count is a place in the sorted table."""
    for search in (*_by_loops(kernel), *_by_tiles(kernel)):
        loops = loops_around(search.load if search.around is None else search.around)
        around = [op for op in (own(loops[0]) if loops else kernel.operations) if op not in search.operations]
        if search.around is not None:
            around = [op for op in around if search.around not in loops_around(op)]
        others, least = arithmetic_cycles(kernel, around), bytes_or_mma_cycles(kernel, around)
        linear = _COMPARED * search.entries * search.elements / kernel.arch.fp32_per_cycle
        steps = search.entries.bit_length()
        gathered = _STEP / kernel.arch.fp32_per_cycle + _GATHER_CYCLES / kernel.arch.warp_size
        gain = max(linear + others, least) / max(steps * gathered * search.elements + others, least)
        if gain < MEDIUM_GAIN:
            continue
        yield kernel.finding(
            RULE.id,
            search.load,
            "high" if gain >= SEVERE_GAIN else "medium",
            f"each of {search.elements} elements is compared with all {search.entries} entries of a table, to count "
            f"the entries below or above it: this takes some {linear:.0f} cycles of an SM, and all other work takes "
            f"{max(others, least):.0f} cycles",
            "if the entries are in order, or can be sorted once before the launch, search by halving, in "
            f"{steps} steps: for half in the powers of two from the largest down, count += tl.where(x > "
            "tl.load(table + count + half - 1, mask=count + half <= n, other=float('inf')), half, 0)",
            {
                "entries": search.entries,
                "elements": search.elements,
                "search_cycles": linear,
                "other_cycles": max(others, least),
            },
            confidence="medium",
            estimate=(gain, 1.0, max(min((linear + others) / max(others, least), gain * math.sqrt(gain)), gain)),
        )


def _by_loops(kernel: Kernel) -> Iterator[_Search]:
    """Loops over the entries that do nothing but count."""
    for loop in innermost(kernel):
        entries = kernel.iterations(loop)
        done = list(inside(loop))
        if not entries or any(op.name in (*STORES, *ATOMICS, *MMAS, *LOOPS, "tt.reduce") for op in done):
            continue
        passed = done[-1]
        for place, (begin, _) in enumerate(carried(loop)):
            counted = kernel.values.maker(passed, place)
            compared = _counted(kernel, counted, begin) if counted is not None else None
            load = _entry(kernel, compared, loop) if compared is not None else None
            if load is not None and compared is not None:
                yield _Search(load, tuple(done), tensor_types(compared.rest)[0].size, entries, loop)


def _counted(kernel: Kernel, op: Operation, begin: str) -> Operation | None:
    """The comparison that decides whether a number that the loop carries grows; None where it is none alone."""
    if op.name in ("arith.addi", "arith.addf") and begin in op.operands:
        return _comparison(kernel, op, 1 - op.operands.index(begin))
    if op.name == "arith.select" and begin in op.operands[1:]:
        other = 3 - op.operands.index(begin)
        grown, value = kernel.values.maker(op, other), kernel.values.operand(op, other)
        is_count = (
            grown is not None and grown.name in ("arith.addi", "arith.addf") and _is_one_more(kernel, grown, begin)
        )
        is_place = value is not None and not value.loaded and loops_around(op)[0].line in value.iterations
        return _comparison(kernel, op, 0) if is_count or is_place else None
    return None


def _is_one_more(kernel: Kernel, addition: Operation, begin: str) -> bool:
    """Whether it adds a constant to what the loop carries."""
    if begin not in addition.operands:
        return False
    added = kernel.values.maker(addition, 1 - addition.operands.index(begin))
    return added is not None and added.name == "arith.constant"


def _comparison(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    """The comparison of which an operand is the result as 0 and 1; None where it is another number."""
    made = kernel.values.maker(op, place)
    while made is not None and (made.name in (*CASTS, *FLOATS) or chooses_one(kernel.values, made)):
        made = kernel.values.maker(made, 0)
    if made is None or made.name not in ("arith.cmpf", "arith.cmpi") or not tensor_types(made.rest):
        return None
    return made if made.rest.split(",")[0].strip()[-2:] in _ORDERS else None


def _entry(kernel: Kernel, compared: Operation, loop: Operation) -> Operation | None:
    """The load of an entry of the same table for all CTAs, with which an iteration compares what the loop is given."""
    for place in (0, 1):
        load = _loaded(kernel, compared, place)
        if load is None or loop not in loops_around(load) or not _is_table(kernel, load):
            continue
        address = kernel.values.operand(load, 0)
        others = kernel.values.sources(compared, 1 - place)
        if address is None or loop.line not in address.iterations or any(loop in loops_around(op) for op in others):
            continue
        return load if loop not in others and address.numbers.min() == address.numbers.max() else None
    return None


def _loaded(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    """The load whose numbers an operand is, in whatever shape."""
    made = kernel.values.maker(op, place)
    while made is not None and made.name in _SHAPED:
        made = kernel.values.maker(made, 0)
    return made if made is not None and made.name in LOADS else None


def _is_table(kernel: Kernel, load: Operation) -> bool:
    """Whether all CTAs read it at the same addresses, which are no data."""
    address = kernel.values.operand(load, 0)
    return address is not None and not (address.loaded or address.program)


def _by_tiles(kernel: Kernel) -> Iterator[_Search]:
    """Sums of comparisons along the axis of the entries."""
    for op in kernel.named("tt.reduce"):
        compared = _comparison(kernel, op, 0) if len(op.operands) == 1 else None
        if compared is None or not any(one.name in ("arith.addi", "arith.addf") for one in inside(op)):
            continue
        axis = int(op.rest.partition("axis = ")[2].partition(" ")[0] or 0)
        tile = tensor_types(compared.rest)[0]
        if len(tile.shape) < 2:
            continue
        for place in (0, 1):
            load, others = _loaded(kernel, compared, place), kernel.values.sources(compared, 1 - place)
            if load is None or not _is_table(kernel, load) or not _is_along(kernel, compared, place, axis):
                continue
            same = any(kernel.tensors_of(one) & kernel.tensors_of(load) for one in others if one.name in LOADS)
            if not same and _is_broadcast(kernel, compared, 1 - place, axis):
                made = (op, compared)
                yield _Search(load, made, tile.size // tile.shape[axis], tile.shape[axis])


def _broadcast_shape(kernel: Kernel, op: Operation, place: int) -> tuple[int, ...]:
    """Of an operand before it is broadcast; empty where it is not."""
    made = kernel.values.maker(op, place)
    while made is not None and made.name in CASTS:
        made = kernel.values.maker(made, 0)
    types = tensor_types(made.rest) if made is not None and made.name == "tt.broadcast" else ()
    return types[0].shape if types else ()


def _is_along(kernel: Kernel, op: Operation, place: int, axis: int) -> bool:
    """Whether an operand's numbers differ along one axis alone."""
    shape = _broadcast_shape(kernel, op, place)
    return bool(shape) and all((length > 1) == (at == axis) for at, length in enumerate(shape))


def _is_broadcast(kernel: Kernel, op: Operation, place: int, axis: int) -> bool:
    """Whether an operand's numbers are the same along an axis."""
    shape = _broadcast_shape(kernel, op, place)
    return bool(shape) and shape[axis] == 1


RULE = Rule("linear-search", "A search that compares with every entry", check)
