"""MMAs that multiply padding: a tile larger than the problem, or one tile where two shorter ones hold it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200
from kperf.diagnose.analyses.bound import bound_of
from kperf.diagnose.analyses.fillings import fillings
from kperf.diagnose.analyses.kept import kept_of_products
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, ctas, mma_cycles, moved_bytes
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, loops_around, mma_element, mma_shape, own
from kperf.diagnose.reading.options import LEAST_TILE, scaled, tile_for
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, PADDED_SHARE, SEVERE_GAIN
from kperf.ir.layouts import element_bytes
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value
from kperf.trace.analyze.finding import Finding, Level

_SIDES = ("rows", "columns")
_ROWS_OF_WGMMA = 64
"""The fewest that wgmma multiplies (PTX ISA, wgmma.mma_async)."""
_BYTES_OF_MMA = 32
"""Of a row of an operand that one instruction of the tensor cores multiplies."""
_PADDING = 0.2
"""Share of the work of a loop's MMAs on padding. One dimension in two tiles saves a quarter of its MMA or more, as 96
in tiles of 64 and 32 in place of 128; less is left where other MMAs of the loop have no padding."""

_OVERLAPPED = 1.5
"""Of the estimate where loads and MMAs take turns: a CTA also waits for memory's latency."""
_IN_A_LOOP = (
    "sum in a loop, for start in range(0, n, 64), with num_stages=3: loads then run ahead, and tiles of 64 leave room "
    "for more CTAs on an SM, which now has shared memory for one; or "
)
_MOST_IN_WORDS = 0.99
"""Of a share that is printed in whole percent."""


@dataclass(frozen=True)
class _Dimension:
    """A dimension of an MMA: the tile's length, how much of it the masks of its operands keep, the shortest tile."""

    name: str
    length: int
    used: int
    least: int

    @property
    def tiles(self) -> tuple[int, ...]:
        """One tile, or two where they are shorter together: 80 in 64 and 16, and not in 128."""
        whole = min(max(self.least, tile_for(self.used)), self.length)
        half = whole // 2
        rest = max(self.least, tile_for(self.used - half)) if half >= self.least else whole
        return (half, rest) if half + rest < whole else (whole,)


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the stores of products, and by the masks of what MMAs multiply."""
    of_stores = list(_thrown_away(kernel))
    yield from of_stores or _padding(kernel)


def _thrown_away(kernel: Kernel) -> Iterator[Finding]:
    """Of products of whose rows or columns no store keeps all, by what is compiled or by the numbers of the launch."""
    for mma, kept in kept_of_products(kernel):
        for side, length in enumerate(kept.shape):
            used = int(kept.any(axis=1 - side).sum())
            wanted = max(LEAST_TILE, tile_for(used))
            if 0 < used <= PADDED_SHARE * length and wanted < length:
                yield _finding(kernel, mma, side, length, used, wanted)


def _finding(kernel: Kernel, mma: Operation, side: int, length: int, used: int, wanted: int) -> Finding:
    name, fast = _SIDES[side], _multiplies_longer(kernel, mma, used, side)
    of_side, fewer = _loaded_in_vain(kernel, mma, side, used), 1 - wanted / length
    gain = 1 / (1 - of_side * fewer)
    severity: Level = "low"
    if fast:
        gain, severity = max(gain, min(length / wanted, 4.0) ** 0.5), "medium"
    elif gain >= MEDIUM_GAIN:
        severity = "high" if gain >= SEVERE_GAIN else "medium"
    thrown_away = 1 - used / length
    return kernel.finding(
        RULE.id,
        mma,
        severity,
        f"the MMA's tile has {length} {name}, and the store's mask keeps only {used}: {thrown_away:.0%} of the MMA's "
        + (f"work and {of_side * thrown_away:.0%} of its loads are thrown away" if of_side else "work is thrown away")
        + (", although its operands' loads take longer than this work" if severity == "low" else ""),
        f"use a tile of {wanted} {name}"
        + (" (the fewest that tl.dot takes)" if wanted == LEAST_TILE else "")
        + (
            ", or compute the transpose (exchange the operands), so that these rows are columns"
            if side == 0 and wanted == LEAST_TILE
            else ""
        ),
        {"tile": length, "used": used},
        confidence="medium",
        estimate=(1.1, 1.0, 1.5) if severity == "low" else (gain, 1.0, length / wanted),
        candidates=scaled(kernel, (length,), wanted / length, whole=True),
    )


def _loaded_in_vain(kernel: Kernel, mma: Operation, side: int, used: int) -> float:
    """Share of an operand in what its loop loads, if no mask leaves out those of its rows that no store keeps.

    Each element is a thread's own work, also if many have one address, as columns modulo a smaller number do.
    """
    shape = mma_shape(mma)
    loops = loops_around(mma)
    if shape is None or not loops:
        return 0.0
    rows, columns, depth = shape
    kept = _used(kernel, mma, side, ((rows, depth), (depth, columns))[side])
    size = {
        access.operation.line: access.tensor.size * access.tensor.bytes
        for access in kernel.accesses
        if access.operation.name in LOADS and loops[0] in loops_around(access.operation)[:1]
    }
    filling = {one.load.line for one in fillings(kernel, mma, side)}
    if _reach(kept, 1 - side) <= used or not size:
        return 0.0
    return sum(size[line] for line in filling & size.keys()) / sum(size.values())


def _multiplies_longer(kernel: Kernel, mma: Operation, used: int, side: int) -> bool:
    """Whether the MMA takes longer than memory for the operands of one iteration, of which a mask loads what is used.

    A tile that holds all rows reads its other operand once: no cache has it.
    """
    *sides, depth = mma_shape(mma) or (0, 0, 0)
    size = element_bytes(mma_element(mma))
    multiplying = 2 * sides[0] * sides[1] * depth * size / 2 / kernel.arch.flop_per_cycle["bf16"]
    return multiplying > (used + sides[1 - side]) * depth * size / kernel.arch.memory_bytes_per_cycle


def _padding(kernel: Kernel) -> Iterator[Finding]:
    """Of the MMAs of a loop, or of a kernel without loops, whose operands have as many zeros in each iteration."""
    for operations in [list(own(loop)) for loop in kernel.main_loops] or [kernel.operations]:
        mmas = [(op, found) for op in operations if op.name in MMAS and (found := _dimensions(kernel, op))]
        work = sum(math.prod(one.length for one in each) for _, each in mmas)
        needed = sum(math.prod(sum(one.tiles) for one in each) for _, each in mmas)
        if work and 1 - needed / work >= _PADDING:
            padded = [(op, one) for op, each in mmas for one in each if sum(one.tiles) < one.length]
            padding = 1 - sum(math.prod(one.used for one in each) for _, each in mmas) / work
            yield _finding_of_padding(kernel, operations, padded, padding, work / needed)


def _finding_of_padding(
    kernel: Kernel,
    operations: Sequence[Operation],
    padded: Sequence[tuple[Operation, _Dimension]],
    padding: float,
    gain: float,
) -> Finding:
    """padding: its share of the work of all MMAs. gain: their work over that with shorter tiles."""
    mma, worst = max(padded, key=lambda item: item[1].length / sum(item[1].tiles))
    dimensions = _dimensions(kernel, mma)
    cut = [one for one in dimensions if one.used < one.length]
    kept = " and ".join(f"{one.used} of {one.length} {one.name}" for one in cut)
    share = f"{padding:.0%}" if padding <= _MOST_IN_WORDS else f"more than {_MOST_IN_WORDS:.0%}"
    multiplying, beside = mma_cycles(kernel, operations), arithmetic_cycles(kernel, operations)
    waiting = _alone(kernel, operations)
    speedup = (multiplying + waiting + beside) / (max(multiplying / gain, waiting) + beside)
    fast = bound_of(kernel).unit == "tensor core"
    others = lines_of((op for op, _ in padded), mma)
    return kernel.finding(
        RULE.id,
        mma,
        "low" if not fast or speedup < MEDIUM_GAIN else "medium" if speedup < SEVERE_GAIN else "high",
        f"{share} of the work of the MMAs is on padding: masks keep {kept}"
        + (f" (likewise on {others})" if others else "")
        + ", and the rest is 0"
        + ("" if fast else ", although loads take longer than this work"),
        (_IN_A_LOOP if waiting and worst == dimensions[-1] else "")
        + _advice(worst, cut)
        + _without_dot(*(one.used for one in dimensions)),
        {"tile": worst.length, "used": worst.used, "padding": padding, "saved": 1 - 1 / gain},
        confidence="medium",
        estimate=(speedup, 1.0, max(gain, _OVERLAPPED * speedup if waiting else gain))
        if fast
        else (1.05, 1.0, speedup),
    )


def _alone(kernel: Kernel, operations: Sequence[Operation]) -> float:
    """Cycles that L2 takes for a CTA's bytes, of a kernel without loops whose shared memory fits once; else 0.

    No other CTA of its SM multiplies meanwhile; shorter tiles leave room for one. Of nerf_layer this makes the estimate
    1.9 x, and 2.62 x were measured (H200).
    """
    if kernel.resources is None or any(True for _ in kernel.named(*LOOPS)):
        return 0.0
    if ctas(kernel) != 1 or ctas(kernel, shared_bytes=0) == 1:
        return 0.0
    return moved_bytes(kernel, operations) / H200.l2_bytes_per_cycle


def _without_dot(rows: int, columns: int, depth: int) -> str:
    """How to multiply where one of the dimensions has a single element: that is no work for tensor cores."""
    if 1 not in (rows, columns, depth):
        return ""
    if depth == 1:
        product = "a * b, with a single number a or b" if 1 in (rows, columns) else "a[:, None] * b[None, :]"
    else:
        product = "tl.sum(a * b[None, :], axis=1)" if columns == 1 else "tl.sum(a[:, None] * b, axis=0)"
    return f"; or multiply without tl.dot: acc += {product}"


def _advice(worst: _Dimension, cut: Sequence[_Dimension]) -> str:
    """Of the dimension with most padding, and of all others that one shorter tile holds."""
    if len(worst.tiles) == 1:
        shorter = (one for one in cut if len(one.tiles) == 1 and sum(one.tiles) < one.length)
        return "use a tile of " + " and ".join(f"{one.tiles[0]} {one.name}" for one in shorter)
    first, second = worst.tiles
    return (
        f"split the {worst.used} into tiles of {first} and {second}, with a load for each: tl.dot(a1, b1, tl.dot(a0, "
        "b0)) sums over both, and where they are columns of a result, it is two: acc0 = tl.dot(p, v0, acc0) and "
        "acc1 = tl.dot(p, v1, acc1)"
    )


def _dimensions(kernel: Kernel, mma: Operation) -> tuple[_Dimension, ...]:
    """Rows, columns and depth of an MMA; empty where its operands are no matrices."""
    shape = mma_shape(mma)
    if shape is None:
        return ()
    rows, columns, depth = shape
    left, right = _used(kernel, mma, 0, (rows, depth)), _used(kernel, mma, 1, (depth, columns))
    lowest = _ROWS_OF_WGMMA if mma.name == "ttng.warp_group_dot" else LEAST_TILE
    return (
        _Dimension("rows", rows, _reach(left, 1), lowest),
        _Dimension("columns", columns, _reach(right, 0), LEAST_TILE),
        _Dimension(
            "elements that it sums over",
            depth,
            _reach(left & right.any(axis=1), 0),
            max(LEAST_TILE, _BYTES_OF_MMA // element_bytes(mma_element(mma))),
        ),
    )


def _used(kernel: Kernel, mma: Operation, place: int, shape: tuple[int, int]) -> NDArray[np.bool_]:
    """Which elements of an operand may be other than 0: all of them, where the masks depend on the CTA or iteration."""
    values = kernel.values if kernel.grid is None else kernel.launched_values
    filled = [one.elements(values, lambda value: _is_fixed(kernel, value)) for one in fillings(kernel, mma, place)]
    known = [one for one in filled if one is not None and one.shape == shape]
    everything = np.ones(shape, dtype=np.bool_)
    return np.logical_or.reduce(known) if known and len(known) == len(filled) else everything


def _is_fixed(kernel: Kernel, value: Value) -> bool:
    """Whether a condition is the same in each CTA and iteration."""
    return not (value.loaded or value.program or value.iterations) and value.arguments <= kernel.numbers.keys()


def _reach(used: NDArray[np.bool_], across: int) -> int:
    """How many rows (across 1) or columns (0) there are up to the last one with a used element; all where none has."""
    places = np.nonzero(used)[1 - across]
    return int(places.max()) + 1 if places.size else used.shape[1 - across]


RULE = Rule("padded-tile", "Padding that an MMA multiplies", check)
