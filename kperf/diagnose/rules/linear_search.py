"""A place in a table that is found by comparing each element, or each CTA's number, with all entries."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

from kperf.diagnose.analyses.comparisons import (
    GATHER_CYCLES,
    axis_of,
    beside,
    comparison,
    is_along,
    is_broadcast,
    is_entry,
    is_given,
    is_one_more,
    loaded,
    memory_of_operand,
    unshaped,
)
from kperf.diagnose.analyses.loops import carried, innermost
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, MMAS, STORES, inside, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_ORDERS = ("gt", "ge", "lt", "le")
_EQUAL = "eq"
_COMPARISONS = ("arith.cmpi", "arith.cmpf")
_COMPARED = 3
"""Instructions at full rate for an entry: a comparison at half rate, and an addition."""
_STEP = 5
"""Of a step of a binary search, beside its load: an address, a comparison and a selection at half rate."""


@dataclass(frozen=True)
class _Search:
    """load: of the table. operations: what compares and counts. elements: that are searched for. entries: of the table.

    around: the loop over the entries, or over tiles of them; None where all are an axis of one tile.
    """

    load: Operation
    operations: tuple[Operation, ...]
    elements: int
    entries: int
    around: Operation | None = None


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of counts of the entries below an element: such a count is a place in the sorted table.

    Of CTAs that walk through a list for one number each also counts of the entries that are equal to it.
    """
    for loop in innermost(kernel):
        yield from islice(_of_ctas(kernel, loop), 1)
    for search in (*_by_loops(kernel), *_by_tiles(kernel)):
        around = beside(kernel, search.load, search.operations, search.around)
        others, least = arithmetic_cycles(kernel, around), bytes_or_mma_cycles(kernel, around)
        linear = _COMPARED * search.entries * search.elements / kernel.arch.fp32_per_cycle
        steps = search.entries.bit_length()
        gathered = _STEP / kernel.arch.fp32_per_cycle + GATHER_CYCLES / kernel.arch.warp_size
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
            "if the entries are in order, or can be sorted once before the launch (a count does not depend on their "
            f"order), search by halving, in {steps} steps{' in place of the loop' * (search.around is not None)}, for "
            "the place at which the kernel's comparison changes. Where it counts entries below x, for half in the "
            "powers of two from the largest down: count += tl.where("
            "(count + half <= n) & (x > tl.load(table + count + half - 1, mask=count + half <= n)), half, 0)",
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
        return comparison(kernel, op, 1 - op.operands.index(begin), _ORDERS)
    if op.name == "arith.select" and begin in op.operands[1:]:
        grown = kernel.values.maker(op, 3 - op.operands.index(begin))
        is_count = (
            grown is not None and grown.name in ("arith.addi", "arith.addf") and is_one_more(kernel, grown, begin)
        )
        return comparison(kernel, op, 0, _ORDERS) if is_count else None
    return None


def _entry(kernel: Kernel, compared: Operation, loop: Operation) -> Operation | None:
    """The load of an entry of the same table for all CTAs, with which an iteration compares what the loop is given.

    The elements of the table itself are ranked (`quadratic-ranking`).
    """
    for place in (0, 1):
        load = loaded(kernel, compared, place)
        if load is not None and _is_table(kernel, load) and is_entry(kernel, load, loop):
            is_own = bool(memory_of_operand(kernel, compared, 1 - place) & kernel.tensors_of(load))
            return load if is_given(kernel, compared, 1 - place, loop) and not is_own else None
    return None


def _is_table(kernel: Kernel, load: Operation) -> bool:
    """Whether all CTAs read it at the same addresses, which are no data."""
    address = kernel.values.operand(load, 0)
    return address is not None and not (address.loaded or address.program)


def _by_tiles(kernel: Kernel) -> Iterator[_Search]:
    """Sums of comparisons along the axis of the entries."""
    for op in kernel.named("tt.reduce"):
        compared = comparison(kernel, op, 0, _ORDERS) if len(op.operands) == 1 else None
        if compared is None or not any(one.name in ("arith.addi", "arith.addf") for one in inside(op)):
            continue
        axis = axis_of(op)
        tile = tensor_types(compared.rest)[0]
        if len(tile.shape) < 2:
            continue
        for place in (0, 1):
            load = loaded(kernel, compared, place)
            if load is None or not _is_table(kernel, load) or not is_along(kernel, compared, place, axis):
                continue
            is_own = memory_of_operand(kernel, compared, 1 - place) & kernel.tensors_of(load)
            if is_own or not is_broadcast(kernel, compared, 1 - place, axis):
                continue
            search = _Search(load, (op, compared), tile.size // tile.shape[axis], tile.shape[axis])
            loops = _over_table(kernel, load)
            if not loops:
                yield search
            elif len(loops) == 1 and is_given(kernel, compared, 1 - place, loops[0]):
                yield from _of_chunks(kernel, search, loops[0])


def _over_table(kernel: Kernel, load: Operation) -> list[Operation]:
    """The loops whose iterations load other entries."""
    address = kernel.values.operand(load, 0)
    return [loop for loop in loops_around(load) if address is not None and loop.line in address.iterations]


def _of_chunks(kernel: Kernel, search: _Search, loop: Operation) -> Iterator[_Search]:
    """The search of a whole table of which each iteration of a loop counts the entries of a tile, and nothing else."""
    chunks, done = kernel.iterations(loop), list(inside(loop))
    if not chunks or any(op.name in (*STORES, *ATOMICS, *MMAS, *LOOPS) for op in done):
        return
    loads = {op.line for op in done if op.name in LOADS}
    made = [
        place
        for place in range(len(carried(loop)))
        if any(one.line in loads for one in kernel.values.sources(done[-1], place))
    ]
    if all(_is_added(kernel, loop, place, search.operations[0]) for place in made):
        yield replace(search, operations=tuple(done), entries=chunks * search.entries, around=loop)


def _is_added(kernel: Kernel, loop: Operation, place: int, counts: Operation) -> bool:
    """Whether the number that a loop carries at a place grows by these counts in each iteration."""
    (begin, _), grown = carried(loop)[place], kernel.values.maker(list(inside(loop))[-1], place)
    if grown is None or grown.name not in ("arith.addi", "arith.addf") or begin not in grown.operands:
        return False
    return unshaped(kernel, grown, 1 - grown.operands.index(begin)) is counts


def _of_ctas(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Of a loop in which each CTA compares all tiles of one list with a number of its own, and needs nothing else.

    The iterations wait for their loads one after another, as the steps of a search by halving do, so that the most that
    a search gives is the ratio of their numbers. The likely gain is its root: what sorts, or counts, stays, or comes.
    """
    iterations, done = kernel.iterations(loop), list(inside(loop))
    if not iterations or any(op.name in (*STORES, *ATOMICS, *MMAS, *LOOPS) for op in done):
        return
    made = (kernel.values.sources(done[-1], place, until=_COMPARISONS) for place in range(len(carried(loop))))
    if any(op in done and op.name in LOADS for sources in made for op in sources):
        return  # a sum of weights, or anything else of the entries
    for compared in (op for op in done if op.name in _COMPARISONS and tensor_types(op.rest)):
        predicate, tile = compared.rest.split(",")[0].strip(), tensor_types(compared.rest)[0]
        load = _searched(kernel, compared, loop) if predicate.endswith((*_ORDERS, _EQUAL)) else None
        entries = iterations * tile.size
        most = iterations / entries.bit_length()
        if load is None or math.sqrt(most) < MEDIUM_GAIN:
            continue
        is_equal, name = predicate.endswith(_EQUAL), ", ".join(sorted(kernel.tensors_of(load)))
        halving = f"search it by halving, in {entries.bit_length()} steps in place of {iterations} iterations"
        yield kernel.finding(
            RULE.id,
            load,
            "high" if math.sqrt(most) >= SEVERE_GAIN else "medium",
            f"each CTA loads all {entries} entries of {name}, to find those that are "
            f"{'equal to' if is_equal else 'below or above'} one number of its own",
            (
                "count all numbers in one pass: let each CTA take a part of the list, and tl.atomic_add 1 at each "
                "entry's counter; a cumulative sum of the counters says where each number begins; or if the list is in "
                f"order, {halving}"
                if is_equal
                else f"if the list is in order, or can be sorted once before the launch, {halving}"
            ),
            {"entries": entries, "iterations": iterations, "steps": entries.bit_length()},
            confidence="medium",
            estimate=(math.sqrt(most), 1.0, most),
        )


def _searched(kernel: Kernel, compared: Operation, loop: Operation) -> Operation | None:
    """The load of a tile of a list, the same for all CTAs, with which an iteration compares a number of the CTA."""
    for place in (0, 1):
        load, number = loaded(kernel, compared, place), unshaped(kernel, compared, 1 - place)
        if load is None or number is None or tensor_types(number.rest) or loop not in kernel.values.sources(load, 0):
            continue  # a number that lies in each iteration at the same place, or a tile of numbers
        is_own = bool(memory_of_operand(kernel, compared, 1 - place) & kernel.tensors_of(load))
        is_given_one = is_given(kernel, compared, 1 - place, loop) and _is_of_cta(kernel, compared, 1 - place)
        if is_given_one and not is_own and not _is_of_cta(kernel, load, 0):
            return load
    return None


def _is_of_cta(kernel: Kernel, op: Operation, place: int) -> bool:
    """Whether an operand depends on the CTA, also by what is loaded."""
    return any(one.name == "tt.get_program_id" for one in kernel.values.sources(op, place))


RULE = Rule("linear-search", "A search that compares with every entry", check)
