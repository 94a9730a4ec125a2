"""The CTAs of a launch in the order in which they start: where their tiles begin, and how often their loops run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kperf.diagnose.analyses.different_rows import Numbers
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS, inside
from kperf.ir.loops import BOUNDS
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation

MOST_CTAS = 1 << 20
"""CTAs of a launch that are followed: those of 16 images of 4096 x 4096 pixels in tiles of 256."""
APART = 1 << 10
"""Rows of a part of a tensor whose offsets are in memory: any number, by which parts differ."""


def origins_of(kernel: Kernel) -> Origins | None:
    """Where the tiles of all CTAs of a launch begin; None without a launch, or of one with too many CTAs."""
    if kernel.grid is None or not 0 < math.prod(kernel.grid) <= MOST_CTAS:
        return None
    return origins_with(kernel, kernel.grid)


def origins_with(kernel: Kernel, grid: tuple[int, int, int], apart: int | None = None) -> Origins:
    """As `origins_of`, of any number of CTAs; `apart`: by how much integers in memory differ, as `Origins` takes it."""
    return Origins(kernel.module, kernel.known | kernel.numbers, _ids(grid), grid, apart=apart)


def _ids(grid: tuple[int, int, int]) -> dict[str, Numbers]:
    """Program ids of all CTAs, in the order in which the GPU starts them: x changes fastest."""
    linear = np.arange(math.prod(grid), dtype=np.int64)
    return {"x": linear % grid[0], "y": linear // grid[0] % grid[1], "z": linear // (grid[0] * grid[1])}


@dataclass(frozen=True)
class TilesInOrder:
    """CTAs, or the tiles of persistent ones, in their order: where they begin, and how many a wave has.

    over_tiles: lines of the loops of which each iteration is another tile.
    """

    origins: Origins
    waves: tuple[int, ...]
    over_tiles: frozenset[int] = frozenset()

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.waves)


def tiles_in_order(kernel: Kernel, grid: tuple[int, int, int], slots: int) -> TilesInOrder | None:
    """None of a persistent kernel whose tiles are not known, or whose CTAs do not all run at the same time."""
    known, ids, count = kernel.known | kernel.numbers, _ids(grid), math.prod(grid)
    once = Origins(kernel.module, known, ids, grid)
    loops = [loop for loop in kernel.named("scf.for") if _is_over_tiles(once, loop)]
    if not loops:
        return TilesInOrder(once, tuple(min(slots, count - first) for first in range(0, count, slots)))
    bounds = [bounds_of(once, loop) for loop in loops]
    if bounds[0] is None or count > slots:
        return None
    lower, upper, step = (np.broadcast_to(one, count) for one in bounds[0])
    for others in bounds:  # of other warp groups
        same = others is not None and all(map(np.array_equal, others, bounds[0]))
        if not same:
            return None
    times = _times(lower, upper, step)
    if not 0 < times.sum() <= MOST_CTAS:
        return None
    running = [np.flatnonzero(times > turn) for turn in range(int(times.max()))]
    which = np.concatenate(running)
    tile = np.concatenate([lower[some] + turn * step[some] for turn, some in enumerate(running)])
    begins = {loop.line: tile for loop in loops}
    ids = {axis: one[which] for axis, one in ids.items()}
    return TilesInOrder(Origins(kernel.module, known, ids, grid, begins), tuple(map(len, running)), frozenset(begins))


def _is_over_tiles(origins: Origins, loop: Operation) -> bool:
    """Whether each of its iterations is another tile of the CTA, which a loop inside computes."""
    lower = origins.operand(loop, BOUNDS[0])
    return lower is not None and lower.program and any(op.name in LOOPS for op in inside(loop))


def bounds_of(origins: Origins, loop: Operation) -> tuple[Numbers, Numbers, Numbers] | None:
    """Where a loop begins and ends, and its step, in each CTA; None if one of them is not known."""
    if loop.name != "scf.for":
        return None
    lower, upper, step = (origins.operand(loop, place) for place in BOUNDS)
    return None if lower is None or upper is None or step is None else (lower.numbers, upper.numbers, step.numbers)


def ends_in_memory(kernel: Kernel, loop: Operation) -> bool:
    """Whether the beginning or the end of a loop is a number that was read."""
    bounds = [kernel.values.operand(loop, place) for place in BOUNDS[:2]] if loop.name == "scf.for" else []
    return any(one is not None and one.loaded for one in bounds)


def _times(lower: Numbers, upper: Numbers, step: Numbers) -> Numbers:
    """Iterations of loops with these bounds."""
    times: Numbers = np.maximum(-((lower - upper) // np.maximum(step, 1)), 0)
    return times


def iterations_of_ctas(turns: TilesInOrder, loop: Operation | None, around: Sequence[Operation]) -> Numbers | None:
    """How often a CTA runs the body of a loop, in the loops around it; loops over tiles do not count.

    Without a loop, how often it runs those around. None if it is not known.
    """
    loops = [one for one in (loop, *around) if one is not None and one.line not in turns.over_tiles]
    found: Numbers = np.ones(turns.count, np.int64)
    for one in loops:
        bounds = bounds_of(turns.origins, one)
        if bounds is None:
            return None
        found = found * _times(*bounds)
    return found
