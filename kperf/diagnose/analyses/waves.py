"""Which CTAs of a launch run at the same time, which tiles they load, and how long that takes.

A tile of a persistent kernel, which loops over tiles, counts as a CTA of its own here.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from kperf.arch import H200, H200_COPY_GB_PER_S, H200_L2_KEPT_BYTES, operations
from kperf.diagnose.analyses.cta_order import (
    APART,
    MOST_CTAS,
    TilesInOrder,
    ends_in_memory,
    iterations_of_ctas,
    origins_with,
    tiles_in_order,
)
from kperf.diagnose.analyses.different_rows import Numbers
from kperf.diagnose.analyses.loops import innermost, largest_bytes, tile_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, ctas, ctas_of_sm, mma_cycles
from kperf.diagnose.analyses.swept_tiles import (
    SweptTiles,
    all_swept,
    distinct_bytes,
    is_shared,
    numbered,
    of_equal_parts,
    overlap,
)
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, MMAS, TMA_LOADS, loops_around, own
from kperf.diagnose.thresholds import MMA_SHARE
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation

_STORES = operations("store")
MEMORY_BYTES_PER_CYCLE = H200_COPY_GB_PER_S * 1e3 / H200.max_mhz
"""Bytes that device memory moves while a clock at its highest rate ticks once."""
COPIED_SHARE = MEMORY_BYTES_PER_CYCLE / (H200.arch.memory_bytes_per_cycle * H200.sms)
"""Of memory's rate that a copy reaches."""


@dataclass(frozen=True)
class Schedule:
    """The CTAs of a launch in the order in which they start.

    origins: where their tiles begin. slots: how many CTAs the GPU has room for. waves: how many run at the same time,
    of each wave. loads: of tiles, in the innermost loops; without loops that load tiles or multiply, all loads.
    tiles: [CTA, load], what each of them sweeps in all iterations: equal numbers are equal bytes. sizes: of each
    number, in bytes. iterations: of the loop with most of them, in the mean of the CTAs. cycles: of an SM for what one
    CTA does in its loops, if its bytes are in L2: MMAs, arithmetic, or what L2 gives it. stored: bytes that a CTA
    stores after its loops, in the mean. kept_bytes: of loaded tiles, the last ones, that stay in L2. jagged: whether
    the offsets of its tiles are in memory, so that all are taken to have equal parts of their tensor.
    """

    kernel: Kernel = field(repr=False)
    origins: Origins = field(repr=False)
    slots: int
    waves: tuple[int, ...]
    loads: tuple[Operation, ...]
    tiles: Numbers
    sizes: Numbers
    iterations: float
    cycles: float
    stored: float
    kept_bytes: int
    jagged: bool = False

    @property
    def ctas(self) -> int:
        """All of them."""
        return sum(self.waves)

    @property
    def compute_cycles(self) -> float:
        """Of the launch: an SM has its CTAs of a wave one after another, and waits at the end of each wave."""
        return sum(ctas_of_sm(wave) for wave in self.waves) * self.cycles

    def traffic(self, order: Numbers | None = None) -> int:
        """Bytes that the loops load from device memory, where CTAs start in this order, else in that of the launch."""
        tiles = self.tiles if order is None else self.tiles[order]
        ends = np.cumsum(self.waves)
        wanted = [np.unique(tiles[end - wave : end]) for wave, end in zip(self.waves, ends, strict=True)]
        return traffic(wanted, self.sizes, self.kept_bytes)

    def memory_cycles(self, moved: float) -> float:
        """Of the launch, for so many bytes and those that it stores."""
        return (moved + self.ctas * self.stored) / MEMORY_BYTES_PER_CYCLE


def memory_bounds(kernel: Kernel, slower: float = 1.0) -> bool:
    """Whether device memory takes longer for a launch's bytes, each once, than SMs for MMAs and bytes from L2.

    slower: times as long as at wgmma's rate that these take. False where the schedule of the launch is not known.
    """
    schedule = schedule_of(kernel)
    return schedule is not None and schedule.memory_cycles(schedule.sizes.sum()) > slower * schedule.compute_cycles


def traffic(waves: Sequence[Numbers], sizes: Numbers, kept_bytes: int = H200_L2_KEPT_BYTES) -> int:
    """Bytes from device memory of waves that want these tiles, whose sizes in bytes are given.

    The CTAs of a wave sweep their tiles at the same pace, so each tile is loaded once a wave. L2 keeps the tiles that
    were used last; of a wave that wants more than L2 keeps, the next one finds none, because L2 drops the oldest bytes
    first, and the next wave begins with those.
    """
    last = np.full(len(sizes), -1)
    used = np.zeros(len(waves), np.int64)
    oldest = moved = held = 0
    for number, wave in enumerate(waves):
        missed = last[wave] < oldest
        loaded = int(sizes[wave[missed]].sum())
        np.subtract.at(used, last[wave[~missed]], sizes[wave[~missed]])
        used[number] = sizes[wave].sum()
        last[wave] = number
        moved, held = moved + loaded, held + loaded
        while held > kept_bytes:
            held -= int(used[oldest])
            oldest += 1
    return moved


def schedule_of(kernel: Kernel, *, jagged: bool = False) -> Schedule | None:
    """The order of a launch, by its grid and the integers it was given.

    None where the tiles of a CTA, or how often its loops run, depend on what is in memory, where tiles overlap, where
    no loop runs, and where CTAs without loops over tiles share no tile. jagged: the bounds of loops may be in memory.
    """
    if kernel.grid is None or kernel.resources is None or not 0 < math.prod(kernel.grid) <= MOST_CTAS:
        return None
    slots = H200.sms * max(ctas(kernel), 1)
    turns = tiles_in_order(kernel, kernel.grid, slots)
    loops = [loop for loop in innermost(kernel) if _tile_loads(loop) or any(op.name in MMAS for op in own(loop))]
    if turns is None:
        return None
    if not loops:
        return _schedule_without_loops(kernel, turns, slots)
    times = {loop.line: iterations_of_ctas(turns, loop, loops_around(loop)) for loop in loops}
    known = {line: float(one.mean()) for line, one in times.items() if one is not None}
    loads = [op for loop in loops for op in _tile_loads(loop)]
    if jagged and not known and not turns.over_tiles and any(ends_in_memory(kernel, loop) for loop in loops):
        turns = replace(turns, origins=origins_with(kernel, kernel.grid, APART))
        swept = of_equal_parts(kernel, all_swept(kernel, turns, loads))
        known = {loop.line: _iterations_of_parts(kernel, swept or (), loop) for loop in loops}
    else:
        jagged, swept = False, all_swept(kernel, turns, loads) if len(known) == len(times) else None
    if swept is None or overlap(kernel, swept):
        return None
    made = _schedule(
        kernel,
        turns,
        slots,
        swept,
        max(known.values()),
        _cycles(kernel, loads, {op.line: known[loop.line] for loop in loops for op in own(loop)}),
        sum(_stored(turns, op) for op in kernel.named(*_STORES) if not any(op in own(loop) for loop in loops)),
    )
    return replace(made, jagged=jagged)


def _iterations_of_parts(kernel: Kernel, swept: Sequence[SweptTiles], loop: Operation) -> float:
    """Of a loop that sweeps such parts, by the load that takes most of them."""
    of_loop = [load for load in swept if load.operation in own(loop)]
    return max((float(load.bytes[0]) / max(distinct_bytes(kernel, load.operation), 1) for load in of_loop), default=0.0)


def _schedule_without_loops(kernel: Kernel, turns: TilesInOrder, slots: int) -> Schedule | None:
    """That of a kernel in which no loop loads tiles or multiplies: all of its loads, of tensors of any dimensions.

    All of L2 keeps them: most are of one CTA, whose GPC's partition alone has them. The tables of rope_pairs's fixed
    copy, with 34 MB from one use to the next, come from memory once: it moves 3.4 TB/s of bytes that are counted once
    (H200).
    """
    loads = [op for op in kernel.named(*LOADS, *TMA_LOADS) if largest_bytes(op)]
    swept = all_swept(kernel, turns, loads)
    if swept is None or not any(map(is_shared, swept)) or overlap(kernel, swept):
        return None
    times = {op.line: float(kernel.times(op)) for op in kernel.operations}
    stored = sum(_stored(turns, op) * times[op.line] for op in kernel.named(*_STORES))
    return _schedule(kernel, turns, slots, swept, 1.0, _cycles(kernel, loads, times), stored, H200.l2_bytes)


def _schedule(
    kernel: Kernel,
    turns: TilesInOrder,
    slots: int,
    swept: Sequence[SweptTiles],
    iterations: float,
    cycles: float,
    stored: float,
    kept_bytes: int = H200_L2_KEPT_BYTES,
) -> Schedule:
    tiles, sizes = numbered(swept)
    loads = tuple(load.operation for load in swept)
    return Schedule(
        kernel, turns.origins, slots, turns.waves, loads, tiles, sizes, iterations, cycles, stored, kept_bytes
    )


def _tile_loads(loop: Operation) -> list[Operation]:
    return [op for op in own(loop) if op.name in (*LOADS, *TMA_LOADS) and tile_bytes(op)]


def _stored(turns: TilesInOrder, op: Operation) -> float:
    """Bytes of the tile of a store, in the mean of the CTAs: some may take another branch."""
    runs = turns.origins.runs(op)
    return largest_bytes(op) * (1.0 if runs is None else float(np.mean(runs)))


def _cycles(kernel: Kernel, loads: Sequence[Operation], times: Mapping[int, float]) -> float:
    """Cycles of an SM for what a CTA does: the longest of its MMAs, its arithmetic, and what L2 gives it.

    times: how often it does each operation, by the operation's line.
    """
    done = [op for op in kernel.operations if op.line in times]
    mmas = sum(times[op.line] * mma_cycles(kernel, [op]) for op in done)
    loaded = sum(times[op.line] * distinct_bytes(kernel, op) for op in loads)
    arithmetic = sum(times[op.line] * arithmetic_cycles(kernel, [op]) for op in done)
    return max(mmas / MMA_SHARE, loaded / H200.l2_bytes_per_cycle, arithmetic)
