"""A reduction across warps in each iteration."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.kernel import LOADS, MMAS, STORES, Kernel, inside, own
from kperf.diagnose.loops import always, carried, reached, read, repeated, stored
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, REDUCTION_CYCLES
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_SHAPED = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "ttg.convert_layout")
"""What hands on numbers as they are."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of reductions along a dimension that several warps share, in a loop."""
    for loop in repeated(kernel):
        moved = sum(
            max((one.size * one.bytes for one in tensor_types(op.rest)), default=0)
            for op in own(loop)
            if op.name in LOADS
        )
        gain = 1 + REDUCTION_CYCLES / max(moved / kernel.arch.memory_bytes_per_cycle, REDUCTION_CYCLES)
        for op in always(loop):
            if op.name != "tt.reduce":
                continue
            types = tensor_types(kernel.module.lines[op.last_line])
            places = kernel.layouts.elements(types[0]) if types else None
            axis = _axis(op.rest)
            if places is None or types[0].size <= kernel.arch.warp_size:
                continue
            along = places[..., axis]
            others = np.delete(places, axis, axis=3)
            if len(places) < 2 or not _shared_by_warps(along, others) or not _carried(loop, op):
                continue
            whole = "rows" if axis == len(types[0].shape) - 1 else "columns"
            yield kernel.finding(
                RULE.id,
                op,
                "medium" if gain >= MEDIUM_GAIN else "low",
                f"each iteration reduces {types[0].size} elements across {kernel.num_warps} warps, through shared "
                "memory and a barrier",
                f"give each warp whole {whole}: use fewer warps, or more {whole} in the tile"
                if _needed(loop, op) and not _is_begun_with_it(kernel, loop, op)
                else "add to a vector that the loop carries, and reduce the vector once after the loop; or give each "
                f"warp whole {whole}",
                {"elements": types[0].size, "num_warps": kernel.num_warps},
                confidence="medium",
                estimate=(min(gain, 1.4), 1.0, 3.0 if gain >= MEDIUM_GAIN else gain),
            )


def _carried(loop: Operation, op: Operation) -> bool:
    """Whether what comes of it goes into the next iteration: a sum that the loop makes."""
    return bool(reached(loop, op.results) & {end for _, end in carried(loop)})


def _needed(loop: Operation, op: Operation) -> bool:
    """Whether an iteration cannot go on without what comes of it, its own or the last one's.

    Attention multiplies by what the largest score of each row gives; a recurrence computes from its last state.
    """
    made = reached(loop, op.results)
    later = reached(loop, [begin for begin, end in carried(loop) if end in made])
    return bool(later & read(op)) or any(
        (one.name in MMAS and (made | later) & read(one)) or (one.name in STORES and stored(one) in made | later)
        for one in own(loop)
    )


def _is_begun_with_it(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether each element meets the last iteration's result before the reduction, by the reduction's own operation.

    If nothing else reads that result, each element can keep one of its own: `tl.max(tl.maximum(x, largest))`.
    """
    begin = next((begin for begin, end in carried(loop) if end in op.results), None)
    if begin is None:
        return False
    made = kernel.values.maker(op, 0)
    while made is not None and made.name in _SHAPED:
        made = kernel.values.maker(made, 0)
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
