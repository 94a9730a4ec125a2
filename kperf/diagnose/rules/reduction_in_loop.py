"""A reduction across warps in each iteration, or of a small tile in each of many CTAs."""

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200
from kperf.diagnose.analyses.loops import always, carried, reached, read, repeated, stored
from kperf.diagnose.analyses.occupancy import bytes_of_cta, ctas
from kperf.diagnose.analyses.warps import issue_slots, with_warps
from kperf.diagnose.analyses.waves import MEMORY_BYTES_PER_CYCLE
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, STORES, TMA_LOADS, inside, own
from kperf.diagnose.reading.options import with_option
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import (
    ELEMENTS_OF_THREAD,
    LEAST_SM_BYTES,
    MEDIUM_GAIN,
    OTHERS_A_CYCLE,
    REDUCTION_CYCLES,
    SEVERE_GAIN,
)
from kperf.ir.layouts import TensorType, tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_FEWER_WARPS = (1, 2)
_ADDED_UP = ("tt.reduce", "tt.scan")
_SHAPED = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "ttg.convert_layout")
"""What hands on numbers as they are."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of reductions along a dimension that several warps share, in a loop; else of the small tiles of many CTAs."""
    yield from list(_in_loops(kernel)) or _of_small_tiles(kernel)


def _in_loops(kernel: Kernel) -> Iterator[Finding]:
    for loop in repeated(kernel):
        moved = sum(
            max((one.size * one.bytes for one in tensor_types(op.rest)), default=0)
            for op in own(loop)
            if op.name in LOADS
        )
        gain = 1 + REDUCTION_CYCLES / max(moved / kernel.arch.memory_bytes_per_cycle, REDUCTION_CYCLES)
        for op in always(loop):
            tile = _across_warps(kernel, op) if op.name == "tt.reduce" else None
            if tile is None or not _carried(loop, op):
                continue
            whole = _whole(op, tile)
            yield kernel.finding(
                RULE.id,
                op,
                "medium" if gain >= MEDIUM_GAIN else "low",
                f"each iteration reduces {tile.size} elements across {kernel.num_warps} warps, through shared "
                "memory and a barrier",
                f"give each warp whole {whole}: use fewer warps, or more {whole} in the tile"
                if _needed(kernel, loop, op) and not _is_begun_with_it(kernel, loop, op)
                else "add to a vector that the loop carries, and reduce the vector once after the loop; or give each "
                f"warp whole {whole}",
                {"elements": tile.size, "num_warps": kernel.num_warps},
                confidence="medium",
                estimate=(min(gain, 1.4), 1.0, 3.0 if gain >= MEDIUM_GAIN else gain),
            )


def _of_small_tiles(kernel: Kernel) -> Iterator[Finding]:
    """Of a launch of many CTAs that would reduce their tiles in one warp each, or in two, with far fewer instructions.

    Of tiles by TMA between no gain and as many issue slots less, by their logarithm: 4.3 times as many were 2.15 x
    (H200, tiles of 32 x 128, the maximum of each column). Of tiles in loops that load by pointers nothing was measured.
    """
    looping = any(True for _ in kernel.named(*LOOPS))
    of_tiles = [op for op in kernel.named("tt.reduce") if _is_by_tma(kernel, op) or not looping]
    reduced = [(op, tile) for op in of_tiles if (tile := _across_warps(kernel, op)) is not None]
    if kernel.grid is None or kernel.resources is None or not reduced or any(True for _ in kernel.named(*MMAS)):
        return
    op, tile = max(reduced, key=lambda one: one[1].size)
    if tile.size > ELEMENTS_OF_THREAD * kernel.arch.warp_size or not any(_has_others(*one) for one in reduced):
        return
    for warps in (one for one in _FEWER_WARPS if one < kernel.num_warps):
        other = with_warps(kernel, warps)
        if other is None or other.code is None or kernel.code is None:
            continue
        if any(_across_warps(other, one) for one in other.named("tt.reduce")):
            continue
        issued, left = issue_slots(kernel.code, kernel.num_warps), issue_slots(other.code, warps)
        slots = issued / left
        gain = math.sqrt(slots) if _is_by_tma(kernel, op) else _gain_in_turn(kernel, issued, left)
        at_once = min(ctas(other), math.prod(kernel.grid) // H200.sms) * bytes_of_cta(kernel)
        spills = other.resources is not None and other.resources.spilled_bytes > 0
        if slots < SEVERE_GAIN or gain < MEDIUM_GAIN or spills or at_once < LEAST_SM_BYTES:
            continue
        yield kernel.finding(
            RULE.id,
            op,
            "medium",
            f"each CTA reduces {tile.size} elements across {kernel.num_warps} warps, through shared memory and a "
            f"barrier, and its warps issue {slots:.1f} times as many instructions as with num_warps={warps}, which "
            "reduces them in registers",
            f"{with_option(kernel, f'num_warps={warps}')}, so that each warp has whole {_whole(op, tile)}",
            {"elements": tile.size, "num_warps": kernel.num_warps, "issue_slots": slots},
            confidence="medium",
            estimate=(gain, 1.0, gain**2),
            candidates=[{"num_warps": one} for one in (warps, 2 * warps) if one < kernel.num_warps],
        )
        return


def _gain_in_turn(kernel: Kernel, issued: float, left: float) -> float:
    """Of a CTA that loads a tile by pointers, and then reduces it: fewer issue slots, and the same bytes.

    1 where the bytes take less time than the instructions that are left, as in a sort: of that nothing was measured. Of
    sums over 32 fields with 16 values this estimates 1.25 x, and 1.45 x were measured (H200).
    """
    loading = bytes_of_cta(kernel) / (MEMORY_BYTES_PER_CYCLE / H200.sms)
    before, after = issued / OTHERS_A_CYCLE, left / OTHERS_A_CYCLE
    return (loading + before) / (loading + after) if loading >= after else 1.0


def _across_warps(kernel: Kernel, op: Operation) -> TensorType | None:
    """What a reduction reduces, if several warps have parts of one row."""
    types = tensor_types(kernel.module.lines[op.last_line])
    places = kernel.layouts.elements(types[0]) if types else None
    if places is None or types[0].size <= kernel.arch.warp_size or len(places) < 2:
        return None
    axis = _axis(op.rest)
    return types[0] if _shared_by_warps(places[..., axis], np.delete(places, axis, axis=3)) else None


def _is_by_tma(kernel: Kernel, op: Operation) -> bool:
    """Whether what is reduced is from shared memory, into which TMA has loaded it, and from nowhere else."""
    makers = {one.name for one in kernel.values.sources(op, 0)}
    return any(True for _ in kernel.named(*TMA_LOADS)) and "ttg.local_load" in makers and not makers & set(LOADS)


def _has_others(op: Operation, tile: TensorType) -> bool:
    """Whether a tile has several rows, so that fewer warps may have whole ones."""
    return tile.size > tile.shape[_axis(op.rest)]


def _whole(op: Operation, tile: TensorType) -> str:
    """What a warp should have all of."""
    return "rows" if _axis(op.rest) == len(tile.shape) - 1 else "columns"


def _carried(loop: Operation, op: Operation) -> bool:
    """Whether what comes of it goes into the next iteration: a sum that the loop makes."""
    return bool(reached(loop, op.results) & {end for _, end in carried(loop)})


def _needed(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether an iteration cannot go on without what comes of it, its own or the last one's.

    Attention multiplies by what the largest score of each row gives, or adds it up without a product; a recurrence
    computes from its last state.
    """
    made = reached(loop, op.results)
    later = reached(loop, [begin for begin, end in carried(loop) if end in made])
    return bool(later & read(op)) or any(
        (one.name in MMAS and (made | later) & read(one))
        or (one.name in STORES and stored(one) in made | later)
        or (one.name in _ADDED_UP and (made | later) & read(one) and _reduced(kernel, one) is not op)
        for one in own(loop)
    )


def _reduced(kernel: Kernel, op: Operation) -> Operation | None:
    """What makes the numbers that an operation reduces, in whatever shape: of a tile another dimension's reduction."""
    made = kernel.values.maker(op, 0)
    while made is not None and made.name in _SHAPED:
        made = kernel.values.maker(made, 0)
    return made


def _is_begun_with_it(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether each element meets the last iteration's result before the reduction, by the reduction's own operation.

    If nothing else reads that result, each element can keep one of its own: `tl.max(tl.maximum(x, largest))`.
    """
    begin = next((begin for begin, end in carried(loop) if end in op.results), None)
    if begin is None:
        return False
    made = _reduced(kernel, op)
    names, readers = {begin, *op.results}, list[Operation]()
    for one in own(loop):
        if read(one) & names and one.name in _SHAPED:
            names |= set(one.results)
        elif read(one) & names and one.name != "scf.yield":
            readers.append(one)
    return made is not None and readers == [made] and made.name in {one.name for one in inside(op)}


def _axis(rest: str) -> int:
    return int(rest.partition("axis = ")[2].partition(" ")[0] or 0)


def _shared_by_warps(along: NDArray[np.int64], others: NDArray[np.int64]) -> bool:
    """Whether two warps hold different parts of one row."""
    rows = [{tuple(row) for row in warp.reshape(along[0].size, -1).tolist()} for warp in others]
    parts = [frozenset(warp.ravel().tolist()) for warp in along]
    return any(
        rows[one] & rows[other] and parts[one] != parts[other]
        for one in range(len(rows))
        for other in range(one + 1, len(rows))
    )


RULE = Rule("reduction-in-loop", "A reduction across warps in a loop", check)
