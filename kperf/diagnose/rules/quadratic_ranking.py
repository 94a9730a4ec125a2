"""Ranks that are counted by comparing each element of a row with all others of the row."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kperf.diagnose.analyses.comparisons import (
    axis_of,
    beside,
    is_broadcast,
    is_given,
    is_one_more,
    memory_of_operand,
    unshaped,
)
from kperf.diagnose.analyses.loops import carried, innermost
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, FLOATS, chooses_one, conditions_of
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, MMAS, STORES, inside, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_ORDERS = ("gt", "ge", "lt", "le")
_COMPARISONS = ("arith.cmpf", "arith.cmpi")
_ADDITIONS = ("arith.addi", "arith.addf")
_COMPARED = 2
"""Instructions at full rate for a comparison, which an SM starts at half rate; anything else takes one."""
_EXCHANGED = 17
"""Instructions at full rate for an element in each step of a bitonic network, as `tl.sort` makes it: 2048 rows of 2048
32-bit numbers take 66 steps each and 0.164 ms (H200)."""


@dataclass(frozen=True)
class _Ranking:
    """compared: the comparison that decides a rank. operations: what compares and counts.

    elements: that are ranked in a CTA, or in an iteration of the loop around. row: elements with which each is
    compared. around: the loop over them, or over tiles of them; None where all are an axis of one tile. times: how
    often the operations are done.
    """

    compared: Operation
    operations: tuple[Operation, ...]
    elements: int
    row: int
    around: Operation | None = None
    times: int = 1


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of ranks that a sort gives with fewer instructions: n elements take n^2 comparisons, a network n log^2 n."""
    for ranking in (*_by_loops(kernel), *_by_tiles(kernel)):
        around = beside(kernel, ranking.compared, ranking.operations, ranking.around)
        others, least = arithmetic_cycles(kernel, around), bytes_or_mma_cycles(kernel, around)
        counting = ranking.times * sum(_cycles(kernel, op) for op in ranking.operations)
        bits = (ranking.row - 1).bit_length()
        steps = bits * (bits + 1) // 2
        sorting = _EXCHANGED * steps * ranking.elements / kernel.arch.fp32_per_cycle
        gain = max(counting + others, least) / max(sorting + others, least)
        if gain < MEDIUM_GAIN:
            continue
        yield kernel.finding(
            RULE.id,
            ranking.compared,
            "high" if gain >= SEVERE_GAIN else "medium",
            f"to rank {ranking.elements} elements, the kernel compares each with all {ranking.row} elements of its "
            f"row: this takes some {counting:.0f} cycles of an SM, a sort would take some {sorting:.0f} cycles, and "
            f"all other work takes {max(others, least):.0f} cycles",
            f"sort each row once, by integer keys with the element's index i in the low {bits} bits: order = "
            f"tl.sort((bits_of_x << {bits}) | i) & {(1 << bits) - 1}, then tl.store(rank + order, i), where bits_of_x "
            "are integers in the order of x; use 64-bit keys if 32 bits are too few; if a row is too long for one CTA, "
            "call torch.argsort before the launch",
            {
                "elements": ranking.elements,
                "row": ranking.row,
                "counting_cycles": counting,
                "sorting_cycles": sorting,
                "other_cycles": max(others, least),
            },
            confidence="medium",
            estimate=(gain, 1.0, 1.5 * gain),
        )


def _cycles(kernel: Kernel, op: Operation) -> float:
    """Of an SM, for an operation of those that compare and count."""
    types = tensor_types(kernel.module.lines[op.last_line])
    if not types or op.name in (*CASTS, *FLOATS) or not op.name.startswith(("arith.", "tt.reduce")):
        return 0.0
    return (_COMPARED if op.name in _COMPARISONS else 1) * types[0].size / kernel.arch.fp32_per_cycle


def _by_loops(kernel: Kernel) -> Iterator[_Ranking]:
    """Loops over the elements of a row, or over tiles of them, that do nothing but count."""
    for loop in innermost(kernel):
        times, done = kernel.iterations(loop), list(inside(loop))
        if not times or any(op.name in (*STORES, *ATOMICS, *MMAS, *LOOPS) for op in done):
            continue
        counted = [
            _counted(kernel, loop, place) for place in range(len(carried(loop))) if _is_data(kernel, loop, place)
        ]
        ranked = [ranking for ranking in counted if ranking is not None and _has_order(ranking.compared)]
        if ranked and None not in counted:
            operations = tuple({op.line: op for one in counted if one for op in one.operations}.values())
            first = ranked[0]
            yield _Ranking(first.compared, operations, first.elements, times * first.row, loop, times)


def _is_data(kernel: Kernel, loop: Operation, place: int) -> bool:
    """Whether what a loop carries at a place is computed of what it loads."""
    sources = kernel.values.sources(list(inside(loop))[-1], place)
    return any(op.name in LOADS and loop in loops_around(op) for op in sources)


def _counted(kernel: Kernel, loop: Operation, place: int) -> _Ranking | None:
    """The elements that an iteration counts: one, or a tile of them along an axis."""
    (begin, _), grown = carried(loop)[place], kernel.values.maker(list(inside(loop))[-1], place)
    if grown is None or not tensor_types(grown.rest) or begin not in grown.operands:
        return None
    at = 1 - grown.operands.index(begin) if grown.name in _ADDITIONS else 0
    if grown.name not in _ADDITIONS and not _is_choice_of_one_more(kernel, grown, begin):
        return None
    added = unshaped(kernel, grown, at)
    if added is not None and added.name == "tt.reduce":
        tile = _of_tile(kernel, added)
        return None if tile is None or not _is_of_iteration(kernel, tile.compared, loop) else tile
    compared = _deciding(kernel, grown, at)
    if compared is None or not _is_of_iteration(kernel, compared, loop):
        return None
    operations = _in_expression(kernel, grown, at, loop)
    return _Ranking(compared, (*operations, grown), tensor_types(compared.rest)[0].size, 1)


def _is_choice_of_one_more(kernel: Kernel, op: Operation, begin: str) -> bool:
    """Whether it is `where(condition, count + 1, count)`."""
    more = kernel.values.maker(op, 1) if op.name == "arith.select" and op.operands[-1] == begin else None
    return more is not None and more.name in _ADDITIONS and is_one_more(kernel, more, begin)


def _is_of_iteration(kernel: Kernel, compared: Operation, loop: Operation) -> bool:
    """Whether one side is another element, or others, in each iteration, and the other side the same ones."""
    return is_given(kernel, compared, 0, loop) != is_given(kernel, compared, 1, loop)


def _by_tiles(kernel: Kernel) -> Iterator[_Ranking]:
    """Sums of comparisons of the elements of a row as a column with those as a row; not those of a loop over tiles."""
    for op in kernel.named("tt.reduce"):
        ranking = _of_tile(kernel, op)
        if ranking is not None and _has_order(ranking.compared) and not _is_of_chunks(kernel, ranking.compared):
            yield ranking


def _is_of_chunks(kernel: Kernel, compared: Operation) -> bool:
    """Whether an iteration of the loop around compares with other elements than the last one."""
    return any(_is_of_iteration(kernel, compared, loop) for loop in loops_around(compared)[:1])


def _of_tile(kernel: Kernel, reduction: Operation) -> _Ranking | None:
    """The elements of a row, in an axis of a tile, that are counted for each element in another axis."""
    if len(reduction.operands) != 1 or not any(op.name in _ADDITIONS for op in inside(reduction)):
        return None
    compared = _deciding(kernel, reduction, 0)
    tile = tensor_types(compared.rest)[0] if compared is not None else None
    axis = axis_of(reduction)
    if compared is None or tile is None or len(tile.shape) <= axis:
        return None
    along = [[not is_broadcast(kernel, compared, side, at) for at in range(len(tile.shape))] for side in (0, 1)]
    is_outer = any(
        along[side][axis] and not along[1 - side][axis] and _is_any_less(along[side], along[1 - side])
        for side in (0, 1)
    )
    if not is_outer:
        return None
    operations = (*_in_expression(kernel, reduction, 0, None), reduction)
    return _Ranking(compared, operations, tile.size // tile.shape[axis], tile.shape[axis])


def _is_any_less(one: list[bool], other: list[bool]) -> bool:
    """Whether along an axis the other one's numbers differ, and the one's do not."""
    return any(differs and not own for own, differs in zip(one, other, strict=True))


def _deciding(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    """The comparison of a row's elements that decides whether a count grows, by an operand that is 0 or 1.

    Equal elements may be counted by their places too. None where other data decide, or the places alone exclude
    elements, as those behind.
    """
    made = kernel.values.maker(op, place)
    while made is not None and (made.name in (*CASTS, *FLOATS) or chooses_one(kernel.values, made)):
        op, place, made = made, 0, kernel.values.maker(made, 0)
    ways = [_together(kernel, way) for way in _ways(kernel, op, place)]
    data = [one for way in ways for one in way if _is_of_data(kernel, one)]
    if not data or not all(_is_of_one_tensor(kernel, one) for one in data):
        return None
    alone = [way[0] for way in ways if len([one for one in way if not _is_bound(kernel, one)]) == 1]
    ordered = [one for one in data if _has_order(one)]
    return next((one for one in ordered if one in alone), None if ordered else data[0])


def _ways(kernel: Kernel, op: Operation, place: int) -> Iterator[Operation]:
    """Conditions of which one is enough; of a choice between two both are taken as such."""
    for made, _ in conditions_of(kernel, op, place, either=True):
        if made.name == "arith.select":
            yield from _ways(kernel, made, 1)
            yield from _ways(kernel, made, 2)
        else:
            yield made


def _together(kernel: Kernel, way: Operation) -> list[Operation]:
    """Conditions that have to hold together, the comparisons of data first."""
    parts = range(2) if way.name == "arith.andi" else ()
    found = [made for place in parts for made, _ in conditions_of(kernel, way, place)] or [way]
    return sorted(found, key=lambda one: not _is_of_data(kernel, one))


def _is_of_data(kernel: Kernel, condition: Operation) -> bool:
    return any(memory_of_operand(kernel, condition, place) for place in range(len(condition.operands)))


def _has_order(compared: Operation) -> bool:
    """Whether a comparison of data asks which one is larger."""
    return compared.name in _COMPARISONS and compared.rest.split(",")[0].strip().endswith(_ORDERS)


def _is_bound(kernel: Kernel, condition: Operation) -> bool:
    """Whether it compares places with one number, as the end of a row, and not with other places."""
    sides = [kernel.values.operand(condition, side) for side in (0, 1)]
    numbers = [one.numbers for one in sides if one is not None and not (one.loaded or one.iterations)]
    return any(one.min() == one.max() for one in numbers)


def _is_of_one_tensor(kernel: Kernel, compared: Operation) -> bool:
    """Whether both sides are loaded from the same tensor."""
    if compared.name not in _COMPARISONS:
        return False
    left, right = memory_of_operand(kernel, compared, 0), memory_of_operand(kernel, compared, 1)
    return bool(left) and left == right


def _in_expression(kernel: Kernel, op: Operation, place: int, loop: Operation | None) -> tuple[Operation, ...]:
    """What an operand is computed of, from the loads on: of a loop what its iterations compute."""
    made = kernel.values.sources(op, place, until=LOADS)
    shape = tensor_types(kernel.module.lines[op.last_line])[0].shape
    return tuple(
        one
        for one in made
        if (loop is None or loop in loops_around(one))
        and (types := tensor_types(one.rest))
        and math.prod(types[0].shape) == math.prod(shape)
    )


RULE = Rule("quadratic-ranking", "Ranks that are counted by comparing all elements of a row", check)
"""The rule: a rank is the place of an element in its sorted row."""
