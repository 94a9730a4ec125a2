"""Tiles too small for the tensor cores to be fed."""

import math
from collections.abc import Iterator

from kperf.arch import H200, operations
from kperf.diagnose.analyses.kept import kept_of_products
from kperf.diagnose.analyses.loops import carried, intensity
from kperf.diagnose.analyses.traffic import asked_bytes, tensor_bytes
from kperf.diagnose.analyses.waves import memory_bounds
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import source
from kperf.diagnose.reading.operations import LOADS, MMAS, loops_around, mma_shape, own
from kperf.diagnose.reading.options import named, scaled
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN, SMALL_TILE_SHARE
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

SMALL_SIDE = 64
"""Where one side of the product is longer than this, the other is short because the problem is."""
_SHARED = 2
"""Times as many CTAs as a larger tile joins, that load a tile: then most larger tiles are full. Not measured."""
_SIDES = (128, 64)
"""Of the tiles that are advised, the best first."""
_SHALLOW_BYTES = 32
"""Of a row of an operand: one instruction of the tensor cores reads that much, for one wait of the loop."""
_DEEP_BYTES = 128
"""Of a row as TMA and wgmma swizzle it at most."""

_WAITS = operations("mma wait")


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the operations of a loop's products for each byte that it loads.

    A tile of which some rows or columns are never stored is not too small: the problem is.
    """
    short = {mma.line for mma, kept in kept_of_products(kernel) if not (kept.any(0).all() and kept.any(1).all())}
    for loop in kernel.main_loops:
        yield from _of_depth(kernel, loop)
        products = [op for op in own(loop) if op.name in MMAS]
        shapes = [shape for op in products if (shape := mma_shape(op)) is not None]
        known = intensity(kernel, own(loop))
        if (
            known is None
            or any(op.line in short for op in products)
            or max(max(shape[:2]) for shape in shapes) > SMALL_SIDE
        ):
            continue
        done, wanted = known
        m, n, depth = shapes[0]
        tile = larger_tile(kernel, loop, (m, n), depth)
        gain = min(wanted / done, _reuse(*tile) / _reuse(m, n)) if tile is not None else 1.0
        if done / wanted < SMALL_TILE_SHARE and tile is not None and gain >= MEDIUM_GAIN:
            sharing = _sharing(kernel, loop)
            chosen, streamed = 0 < sharing < _SHARED * tile[0] / m, memory_bounds(kernel)
            hint = chosen or streamed
            yield kernel.finding(
                RULE.id,
                products[0],
                "low"
                if hint
                else "high"
                if done / wanted <= SMALL_TILE_SHARE * 0.75 and gain >= SEVERE_GAIN
                else "medium",
                f"with a tile of {m} x {n} the loop does {done:.0f} operations for each byte that it loads, and the "
                f"tensor cores need {wanted:.0f} to be busy"
                + (", although the launch's bytes take longer to come from device memory" if streamed else ""),
                f"if more than {m} rows have the same operand (tokens of an expert), " * chosen
                + "many CTAs with other rows load the same operand: " * (sharing > 0 and not chosen)
                + f"use tiles of {tile[0]} x {tile[1]} (num_warps=4{' or 8' * (max(tile) > SMALL_SIDE)}), and autotune "
                "tiles around this size",
                {"operations_per_byte": done, "rows": m, "columns": n},
                confidence="low" if hint else "medium",
                estimate=(1.1, 1.0, gain)
                if chosen
                else (1.05, 1.0, 1.5)
                if streamed
                else (min(gain, 4.0) ** 0.8, min(gain**0.5, 1.2), gain),
                candidates=[
                    tile | more
                    for factor in (2, 4)
                    for tile in scaled(kernel, (m, n), factor)[-1:]
                    for more in ({}, {"num_warps": 8})
                ],
            )


def _of_depth(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Of a product that a loop sums up: its iterations are as long as the operands' rows, and their number is free.

    In attention an iteration also rescales the sum, by what it computes of the scores of its keys.
    """
    sums = {begin for begin, _ in carried(loop)}
    for op in own(loop) if kernel.iterations(loop) != 1 else ():  # one iteration has all that there is to sum
        if op.name not in MMAS or (shape := mma_shape(op)) is None:
            continue
        is_rescaled = _is_rescaled(kernel, op, sums)
        if not is_rescaled and op.operands[2].partition("#")[0] not in sums:
            continue
        depth = _depth(loop, op)
        size = depth * tensor_types(op.rest.partition(" : ")[2])[0].bytes
        if size > _SHALLOW_BYTES or max(shape[:2]) <= SMALL_SIDE:
            continue
        deep = depth * _DEEP_BYTES // size
        gain = deep / depth
        deeper = scaled(kernel, (depth,), gain)
        if is_rescaled:
            yield _of_keys(kernel, op, depth, deep, deeper)
            continue
        yield kernel.finding(
            RULE.id,
            op,
            "high",
            f"each iteration multiplies only {depth} columns of its operands (rows of {size} bytes): waiting for its "
            "loads takes longer than the MMA",
            f"let an iteration multiply {deep} columns (rows of {_DEEP_BYTES} bytes), with "
            f"{named(deeper, otherwise='a larger BLOCK_K')}, and autotune around this value",
            {"depth": depth, "row_bytes": size},
            confidence="medium",
            estimate=(gain**0.5, 1.0, gain),  # 2.2 x were measured of 4 (H100)
            candidates=deeper,
        )


def _of_keys(kernel: Kernel, op: Operation, depth: int, deep: int, deeper: list[dict[str, int]]) -> Finding:
    """Of a sum that each iteration rescales: what an iteration does beside the MMA grows less than its keys."""
    rows, columns, _ = mma_shape(op) or (0, 0, 0)
    gain = deep / depth
    return kernel.finding(
        RULE.id,
        op,
        "medium",
        f"each iteration has only {depth} keys (the dimension over which this MMA sums), and for them rescales the "
        f"whole sum of {rows} x {columns}",
        f"let an iteration have {deep // 2} or {deep} keys (of several pages, if a page has {depth}), with "
        f"{named(deeper, otherwise='a larger tile of keys')}, and autotune around this value",
        {"depth": depth, "rows": rows, "columns": columns},
        confidence="medium",
        estimate=(gain**0.25, 1.0, gain),  # 1.18 x were measured of 2 (H200)
        candidates=deeper,
    )


def _is_rescaled(kernel: Kernel, mma: Operation, sums: set[str]) -> bool:
    """Whether an MMA adds to a sum that the loop carries, times numbers."""
    made = source(kernel.values, mma, 2)
    if made is None or made.name != "arith.mulf":
        return False
    waits = (one for place in (0, 1) if (one := kernel.values.maker(made, place)) is not None and one.name in _WAITS)
    passed = {name for one in (made, *waits) for name in one.operands}  # a wait hands the sum on
    return bool(passed & sums)


def _depth(loop: Operation, mma: Operation) -> int:
    """Columns of the operands that an iteration multiplies: of an operand in registers Triton makes several MMAs."""
    parts = (op for op in own(loop) if op.name in MMAS and op.location == mma.location)
    return sum(shape[2] for op in parts if (shape := mma_shape(op)) is not None)


def _sharing(kernel: Kernel, loop: Operation) -> float:
    """CTAs of the launch that load each tile of an operand that a loaded number chooses, in the mean; 0 without one.

    Such an operand, as the weights of an expert, may have few rows, as in decoding, or those of many CTAs. 1 where the
    launch does not say how long its tensor is.
    """
    here = [access for access in kernel.accesses if access.operation.name in LOADS and access.operation in own(loop)]
    chosen = [access.operation for access in here if access.value.loaded and not access.value.scattered]
    return min((_asked_times(kernel, op) for op in chosen), default=0.0)


def _asked_times(kernel: Kernel, op: Operation) -> float:
    """How often the launch loads each byte of a tensor by this load, in the mean; 1 where that is not known."""
    whole = sum(tensor_bytes(kernel, name) for name in kernel.tensors_of(op))
    return max(asked_bytes(kernel, op) / whole, 1.0) if whole and kernel.grid is not None else 1.0


def larger_tile(kernel: Kernel, loop: Operation, sides: tuple[int, int], depth: int) -> tuple[int, int] | None:
    """The largest tile with which the launch still has a CTA for each SM; None where none is larger.

    A side that is as long as the problem stays as it is. A loop around this one gives a CTA several tiles: then the
    number of tiles is not known, as without a launch.
    """
    given = _given(kernel, sides, depth)
    tiles = [(sides[0] if given[0] else side, sides[1] if given[1] else side) for side in _SIDES]
    larger = (tile for tile in tiles if math.prod(tile) > math.prod(sides))
    if kernel.grid is None or loops_around(loop):
        return next(larger, None)
    elements = math.prod(kernel.grid) * math.prod(sides)
    return next((tile for tile in larger if elements >= H200.sms * math.prod(tile)), None)


def _given(kernel: Kernel, sides: tuple[int, int], depth: int) -> tuple[bool, bool]:
    """Of each side of a tile whether it is as long as the problem, such as a head: no step from tile to tile is.

    Of two equal sides the second, where one constexpr of this length is a step and another one is none; but not where
    the latter may be the product's depth.
    """
    used = kernel.tile_lengths
    if used is None:
        return False, False
    whole = {value for name, value in kernel.configuration.items() if name in used.lengths - used.steps}
    steps = {value for name, value in kernel.configuration.items() if name in used.steps}
    first, second = (side in whole - steps for side in sides)
    return first, second or (sides[0] == sides[1] != depth and sides[1] in whole)


def _reuse(rows: int, columns: int) -> float:
    """How often a product uses each element of its operands, times a number that is the same for all tiles."""
    return rows * columns / (rows + columns)


RULE = Rule("small-tile", "Tiles too small for the tensor cores", check, explained_by=("dot-on-fma",))
