"""How the work of a launch of few CTAs is given to more of them: parts of a loop, or smaller tiles."""

import math
from collections.abc import Iterable

from kperf.diagnose.analyses.chains import is_chase
from kperf.diagnose.analyses.comparisons import axis_of
from kperf.diagnose.analyses.loops import carried, is_recurrence
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, mma_cycles, moved_bytes
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, STORES, inside, own
from kperf.diagnose.reading.options import LEAST_TILE, OPTIONS
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation

_MAXIMA = ("arith.maximumf", "arith.maxnumf")
_COMBINED = (
    *_MAXIMA,
    *("arith.addf", "arith.addi", "tt.addptr", "arith.minimumf", "arith.minnumf"),
    *("arith.maxsi", "arith.maxui", "arith.minsi", "arith.minui", "arith.andi", "arith.ori"),
)
"""By which iterations may combine what they carry in any order; a pointer that moves on by a step."""
_MOST_WORK = 0.5
"""Of a CTA, which a loop holds that is worth a split."""


def further(kernel: Kernel, times: int) -> str:
    """How `times` as many CTAs come to work, in words: the ways that fit the kernel, or those that there are."""
    loop = next((one for one in kernel.named(*LOOPS) if can_be_split(kernel, one, times)), None)
    ways = [_of_loop(kernel, loop, times)] if loop is not None else []
    smaller = _smaller(kernel, times)
    if smaller:
        ways.append(f"use smaller tiles: {', '.join(f'{name}={value}' for name, value in smaller.items())}")
    if kernel.history is not None and (kernel.history.series or kernel.history.slices):
        ways.append("do the work of several launches in one")
    return f"launch {times} times as many CTAs: " + (
        "; or ".join(ways) or "use smaller tiles, or let several CTAs share one sum (split-K)"
    )


def _of_loop(kernel: Kernel, loop: Operation, times: int) -> str:
    """A split that the kernel has already, with its constexpr, or a new one."""
    frame = frame_of(loop)
    place = f"the loop on line {frame.line}" if frame is not None else "the loop"
    if parts := _parts(kernel, loop):
        return f"let more of them share {place}, with {' or '.join(f'{one}={now * times}' for one, now in parts)}"
    if turns := _turns(kernel, loop):
        fewer = " or ".join(f"{name}={_part_of(now, times)}" for name, now in turns)
        return f"let each take fewer iterations of {place}, with {fewer}"
    results = _has_results(kernel, loop)
    maxima = _carries_a_maximum(kernel, loop)
    added = ", ".join(_added_in_memory(kernel, loop))
    return (
        f"let {times} CTAs take parts of {place}"
        + (f" and {'combine' if maxima else 'add'} their results" if results else "")
        + (", with sums rescaled to the largest maximum" if results and maxima else "")
        + (f", and add to {added} by tl.atomic_add" if added else "")
    )


def has_parts_apart(kernel: Kernel, times: int) -> bool:
    """Whether CTAs can take parts of a loop that leave nothing to combine: each stores its own results, as now."""
    loop = next((one for one in kernel.named(*LOOPS) if can_be_split(kernel, one, times)), None)
    if loop is None or _added_in_memory(kernel, loop):
        return False
    return not _has_results(kernel, loop) or bool(_turns(kernel, loop))


def _has_results(kernel: Kernel, loop: Operation) -> bool:
    """Whether anything reads what a loop hands on."""
    return any(name.partition("#")[0] in loop.results for op in kernel.operations for name in op.operands)


def _carries_a_maximum(kernel: Kernel, loop: Operation) -> bool:
    """Whether an iteration goes on with the largest number of those before; its own maximum is no other's."""
    begins = {begin for begin, _ in carried(loop)}
    return any(
        begins & {*op.operands, *(name for made in _converted(kernel, op) for name in made.operands)}
        for op in own(loop)
        if op.name in _MAXIMA
    )


def _converted(kernel: Kernel, op: Operation) -> list[Operation]:
    """The conversions of layouts whose results it reads."""
    makers = (kernel.values.maker(op, place) for place in range(len(op.operands)))
    return [one for one in makers if one is not None and one.name == "ttg.convert_layout"]


def _added_in_memory(kernel: Kernel, loop: Operation) -> list[str]:
    """The tensors that a loop both loads and stores: one CTA may not store what another one loads."""
    loaded, written = (
        {name for op in inside(loop) if op.name in names for name in kernel.tensors_of(op)} for names in (LOADS, STORES)
    )
    return sorted(loaded & written)


def can_be_split(kernel: Kernel, loop: Operation, times: int) -> bool:
    """Whether CTAs can take parts of a loop, which has enough iterations and most of the work.

    A sum that the loop itself scans, or stores, is that of all iterations before.
    """
    count = kernel.iterations(loop)
    if loop.name != "scf.for" or (count is not None and count < times):
        return False
    if is_chase(loop) or is_recurrence(loop) or any(op.name == "tt.scan" for op in own(loop)):
        return False
    return _work(kernel, inside(loop)) >= _MOST_WORK * _work(kernel, kernel.operations)


def combines(kernel: Kernel, loop: Operation) -> bool:
    """Whether a loop only adds to what it carries, or keeps the largest, so that CTAs can do so with parts of it.

    Nor does it load what it stores, as an iteration may need what the last one stored. Nor does anything else in it
    read a sum, which is that of the iterations before.
    """
    end = loop.regions[-1].operations[-1]
    made = [(begin, kernel.values.maker(end, place)) for place, (begin, _) in enumerate(carried(loop))]
    return not _added_in_memory(kernel, loop) and all(
        one is None or (one.name in _COMBINED and begin in one.operands and _is_read_by(loop, begin, one, end))
        for begin, one in made
    )


def _is_read_by(loop: Operation, begin: str, sums: Operation, end: Operation) -> bool:
    """Whether what a loop carries is read by these two alone; of a pointer, which is what it is for, True."""
    names = {begin, *sums.results}
    readers = {op.line for op in inside(loop) if names.intersection(op.operands)}
    return sums.name == "tt.addptr" or readers <= {sums.line, end.line}


def _work(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Cycles of an SM, as if it did nothing at the same time."""
    return sum(
        kernel.times(op)
        * (
            moved_bytes(kernel, [op]) / kernel.arch.memory_bytes_per_cycle
            + arithmetic_cycles(kernel, [op])
            + mma_cycles(kernel, [op])
        )
        for op in operations
    )


def _parts(kernel: Kernel, loop: Operation) -> list[tuple[str, int]]:
    """The constexprs that say of how many CTAs each takes a part of a loop, with their values.

    Such a CTA computes the loop's bounds of its number along an axis of the grid that is as long as the constexpr, and
    of the constexpr: another one may have the same value, as the number of heads that share a key.
    """
    sources = [op for place in BOUNDS for op in kernel.values.sources(loop, place)]
    axes = {op.rest.split()[0] for op in sources if op.name == "tt.get_program_id"}
    lengths = {length for axis, length in zip("xyz", kernel.grid or (), strict=False) if axis in axes and length > 1}
    used = kernel.tile_lengths
    if used is None:
        return []
    return [
        (name, value)
        for name, value in kernel.configuration.items()
        if value in lengths and name in used.of_bounds and name not in (*OPTIONS, *used.lengths)
    ]


def _turns(kernel: Kernel, loop: Operation) -> list[tuple[str, int]]:
    """The constexprs that say how many items of all a CTA takes in a loop, with their values.

    The grid then has as many CTAs along an axis as these leave of an argument of the launch, each with results of its
    own: the length of a row leaves no such number.
    """
    used, count = kernel.tile_lengths, kernel.iterations(loop)
    if used is None or not count:
        return []
    return [
        (name, value)
        for name, value in kernel.configuration.items()
        if name in used.of_turns and not value % count
        if any(
            math.ceil(number / value) in (kernel.grid or ())
            for other, number in kernel.numbers.items()
            if other != name and number > value
        )
    ]


def _part_of(count: int, times: int) -> int:
    """At most so small a part; of a power of two another one."""
    part = max(count // times, 1)
    return part if count & (count - 1) else 1 << part.bit_length() - 1


def _smaller(kernel: Kernel, times: int) -> dict[str, int]:
    """Lengths of a CTA's tile, by constexpr, with which there are so many times as many tiles; empty without them."""
    used = kernel.tile_lengths
    if used is None:
        return {}
    least = LEAST_TILE if any(True for _ in kernel.named(*MMAS)) else 1
    whole, others = set[int](), set[int]()
    for op in kernel.named("tt.reduce", "tt.scan"):
        shape = tensor_types(kernel.module.lines[op.last_line])[0].shape
        whole.add(shape[axis_of(op)])
        others.update(length for axis, length in enumerate(shape) if axis != axis_of(op))
    tiles = {
        name: value
        for name, value in kernel.configuration.items()
        if name in used.of_ctas and value > least and value not in whole - others
    }
    elements = max((access.tensor.size for access in kernel.accesses), default=0)
    smaller, left = dict(tiles), math.ceil(math.log2(times))
    while left > 0 and any(value > least for value in smaller.values()) and elements > kernel.arch.warp_size:
        longest = max(smaller, key=lambda name: smaller[name])
        smaller[longest] //= 2
        left, elements = left - 1, elements // 2
    return {name: value for name, value in smaller.items() if value < tiles[name]} if left == 0 else {}
