"""Which CTAs of a launch run at the same time, which tiles they load, and how long that takes.

A tile of a persistent kernel, which loops over tiles, counts as a CTA of its own here.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200, H200_COPY_GB_PER_S, H200_L2_KEPT_BYTES, operations
from kperf.diagnose.analyses.loops import innermost, largest_bytes, tile_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, ctas, ctas_of_sm
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import (
    LOADS,
    LOOPS,
    MMAS,
    TMA_LOADS,
    inside,
    loops_around,
    mma_element,
    mma_shape,
    own,
)
from kperf.diagnose.thresholds import MMA_SHARE
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value

Numbers = NDArray[np.int64]

_MOST = 1 << 20
"""CTAs of a launch that are followed: those of 16 images of 4096 x 4096 pixels in tiles of 256."""
_MOST_BEYOND = 1.25
_LARGEST_KEY = 1 << 62
_LOWER, _UPPER, _STEP = 1, 2, 3
"""Places of a loop's bounds among the operands of `scf.for`."""
_STORES = operations("store")
_APART = 1 << 10
"""Rows of a part of a tensor whose offsets are in memory: any number, by which parts differ."""
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
    if kernel.grid is None or kernel.resources is None or not 0 < math.prod(kernel.grid) <= _MOST:
        return None
    slots = H200.sms * max(ctas(kernel), 1)
    turns = _turns(kernel, kernel.grid, slots)
    loops = [loop for loop in innermost(kernel) if _tile_loads(loop) or any(op.name in MMAS for op in own(loop))]
    if turns is None:
        return None
    if not loops:
        return _schedule_without_loops(kernel, turns, slots)
    times = {loop.line: _iterations(turns, loop, loops_around(loop)) for loop in loops}
    known = {line: float(one.mean()) for line, one in times.items() if one is not None}
    loads = [op for loop in loops for op in _tile_loads(loop)]
    if jagged and not known and not turns.over_tiles and any(_ends_in_memory(kernel, loop) for loop in loops):
        turns = replace(turns, origins=_origins(kernel, kernel.grid, _APART))
        swept = _of_equal_parts(kernel, _all_swept(kernel, turns, loads))
        known = {loop.line: _iterations_of_parts(kernel, swept or (), loop) for loop in loops}
    else:
        jagged, swept = False, _all_swept(kernel, turns, loads) if len(known) == len(times) else None
    if swept is None or _overlap(kernel, swept):
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


def _ends_in_memory(kernel: Kernel, loop: Operation) -> bool:
    """Whether the beginning or the end of a loop is a number that was read."""
    bounds = [kernel.values.operand(loop, place) for place in (_LOWER, _UPPER)] if loop.name == "scf.for" else []
    return any(one is not None and one.loaded for one in bounds)


def _of_equal_parts(kernel: Kernel, swept: Sequence["_Swept"] | None) -> list["_Swept"] | None:
    """What loads bring, if the different tiles of each are equal parts of its tensor. None if a length is not known."""
    found = []
    for load in swept or ():
        lengths = [kernel.lengths.get(name) for name in kernel.tensors_of(load.operation)]
        if len(lengths) != 1 or lengths[0] is None:
            return None
        first, _ = different(load.begins.T, len(load.begins))
        pointers = [one for one in tensor_types(load.operation.rest) if one.element.startswith("!tt.ptr")]
        if not pointers:  # of TMA
            return None
        part = lengths[0] * pointers[0].bytes // len(first)
        found.append(replace(load, bytes=np.full(len(load.begins), part)))
    return found or None


def _iterations_of_parts(kernel: Kernel, swept: Sequence["_Swept"], loop: Operation) -> float:
    """Of a loop that sweeps such parts, by the load that takes most of them."""
    of_loop = [load for load in swept if load.operation in own(loop)]
    return max((float(load.bytes[0]) / max(_distinct(kernel, load.operation), 1) for load in of_loop), default=0.0)


def _schedule_without_loops(kernel: Kernel, turns: "_Turns", slots: int) -> Schedule | None:
    """That of a kernel in which no loop loads tiles or multiplies: all of its loads, of tensors of any dimensions.

    All of L2 keeps them: most are of one CTA, whose GPC's partition alone has them. The tables of rope_pairs's fixed
    copy, with 34 MB from one use to the next, come from memory once: it moves 3.4 TB/s of bytes that are counted once
    (H200).
    """
    loads = [op for op in kernel.named(*LOADS, *TMA_LOADS) if largest_bytes(op)]
    swept = _all_swept(kernel, turns, loads)
    if swept is None or not any(map(_is_shared, swept)) or _overlap(kernel, swept):
        return None
    times = {op.line: float(kernel.times(op)) for op in kernel.operations}
    stored = sum(_stored(turns, op) * times[op.line] for op in kernel.named(*_STORES))
    return _schedule(kernel, turns, slots, swept, 1.0, _cycles(kernel, loads, times), stored, H200.l2_bytes)


def _schedule(
    kernel: Kernel,
    turns: "_Turns",
    slots: int,
    swept: Sequence["_Swept"],
    iterations: float,
    cycles: float,
    stored: float,
    kept_bytes: int = H200_L2_KEPT_BYTES,
) -> Schedule:
    tiles, sizes = _numbered(swept)
    loads = tuple(load.operation for load in swept)
    return Schedule(
        kernel, turns.origins, slots, turns.waves, loads, tiles, sizes, iterations, cycles, stored, kept_bytes
    )


@dataclass(frozen=True)
class _Turns:
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


@dataclass(frozen=True)
class _Swept:
    """What a load brings each CTA: `begins` [CTA, ...] tells its tile from others, `bytes` is the tile's sweep."""

    operation: Operation
    begins: Numbers
    bytes: Numbers


def _turns(kernel: Kernel, grid: tuple[int, int, int], slots: int) -> _Turns | None:
    """None of a persistent kernel whose tiles are not known, or whose CTAs do not all run at the same time."""
    known, ids, count = kernel.known | kernel.numbers, _ids(grid), math.prod(grid)
    once = Origins(kernel.module, known, ids, grid)
    loops = [loop for loop in kernel.named("scf.for") if _is_over_tiles(once, loop)]
    if not loops:
        return _Turns(once, tuple(min(slots, count - first) for first in range(0, count, slots)))
    bounds = [bounds_of(once, loop) for loop in loops]
    if bounds[0] is None or count > slots:
        return None
    lower, upper, step = (np.broadcast_to(one, count) for one in bounds[0])
    for others in bounds:  # of other warp groups
        same = others is not None and all(map(np.array_equal, others, bounds[0]))
        if not same:
            return None
    times = _times(lower, upper, step)
    if not 0 < times.sum() <= _MOST:
        return None
    running = [np.flatnonzero(times > turn) for turn in range(int(times.max()))]
    which = np.concatenate(running)
    tile = np.concatenate([lower[some] + turn * step[some] for turn, some in enumerate(running)])
    begins = {loop.line: tile for loop in loops}
    ids = {axis: one[which] for axis, one in ids.items()}
    return _Turns(Origins(kernel.module, known, ids, grid, begins), tuple(map(len, running)), frozenset(begins))


def origins_of(kernel: Kernel) -> Origins | None:
    """Where the tiles of all CTAs of a launch begin; None without a launch, or of one with too many CTAs."""
    if kernel.grid is None or not 0 < math.prod(kernel.grid) <= _MOST:
        return None
    return _origins(kernel, kernel.grid)


def _origins(kernel: Kernel, grid: tuple[int, int, int], apart: int | None = None) -> Origins:
    return Origins(kernel.module, kernel.known | kernel.numbers, _ids(grid), grid, apart=apart)


def _ids(grid: tuple[int, int, int]) -> dict[str, Numbers]:
    """Program ids of all CTAs, in the order in which the GPU starts them: x changes fastest."""
    linear = np.arange(math.prod(grid), dtype=np.int64)
    return {"x": linear % grid[0], "y": linear // grid[0] % grid[1], "z": linear // (grid[0] * grid[1])}


def _is_over_tiles(origins: Origins, loop: Operation) -> bool:
    """Whether each of its iterations is another tile of the CTA, which a loop inside computes."""
    lower = origins.operand(loop, _LOWER)
    return lower is not None and lower.program and any(op.name in LOOPS for op in inside(loop))


def bounds_of(origins: Origins, loop: Operation) -> tuple[Numbers, Numbers, Numbers] | None:
    """Where a loop begins and ends, and its step, in each CTA; None if one of them is not known."""
    if loop.name != "scf.for":
        return None
    lower, upper, step = (origins.operand(loop, place) for place in (_LOWER, _UPPER, _STEP))
    return None if lower is None or upper is None or step is None else (lower.numbers, upper.numbers, step.numbers)


def _times(lower: Numbers, upper: Numbers, step: Numbers) -> Numbers:
    """Iterations of loops with these bounds."""
    times: Numbers = np.maximum(-((lower - upper) // np.maximum(step, 1)), 0)
    return times


def _iterations(turns: _Turns, loop: Operation | None, around: Sequence[Operation]) -> Numbers | None:
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


def _tile_loads(loop: Operation) -> list[Operation]:
    return [op for op in own(loop) if op.name in (*LOADS, *TMA_LOADS) and tile_bytes(op)]


def _stored(turns: _Turns, op: Operation) -> float:
    """Bytes of the tile of a store, in the mean of the CTAs: some may take another branch."""
    runs = turns.origins.runs(op)
    return largest_bytes(op) * (1.0 if runs is None else float(np.mean(runs)))


def _distinct(kernel: Kernel, op: Operation) -> int:
    """Bytes of the tile of a load, the same ones once."""
    found = next((access.tile_bytes for access in kernel.accesses if access.operation is op), largest_bytes(op))
    return min(found, largest_bytes(op))


def _all_swept(kernel: Kernel, turns: _Turns, loads: Sequence[Operation]) -> list[_Swept] | None:
    """What these loads bring; None if one of them is not known, or if none brings anything."""
    swept = [one for op in loads if (one := _swept(kernel, turns, op)) is not None]
    return swept if len(swept) == len(loads) and any(load.bytes.any() for load in swept) else None


def _is_shared(load: _Swept) -> bool:
    """Whether several CTAs load the same tile, and others another one."""
    first, _ = different(load.begins.T, len(load.begins))
    return 1 < len(first) < len(load.begins)


def _swept(kernel: Kernel, turns: _Turns, op: Operation) -> _Swept | None:
    """By the address of the first element, or by the tensor and the coordinates, of a load. None if not known."""
    origins = turns.origins
    if op.name in TMA_LOADS:
        written = re.search(r"\[([^\]]*)\]", op.rest)
        coordinates = range(1, (written[1].count("%") if written else 0) + 1)
        values = [_tensor(kernel, origins, op), *(origins.operand(op, place) for place in coordinates)]
    else:
        values = [origins.operand(op, 0)]
    known = [one for one in values if one is not None]
    along = frozenset().union(*(one.iterations for one in known))
    times = _iterations(turns, None, [loop for loop in loops_around(op) if loop.line in along])
    if len(known) < len(values) or times is None:
        return None
    size = _distinct(kernel, op)
    columns = [np.broadcast_to(one, turns.count) for one in (*(value.numbers for value in known), np.array(size))]
    return _Swept(op, np.stack(columns, axis=1), times * size)


def _overlap(kernel: Kernel, loads: Sequence[_Swept]) -> bool:
    """Whether tiles of a loop, or of a kernel without loops, are larger than their tensor.

    They are a convolution's windows, say, whose bytes are not different.
    Tiles at the ends of a tensor may reach beyond it.
    """
    accesses = {access.operation.line: access for access in kernel.accesses}
    together: dict[tuple[int, str], list[_Swept]] = {}
    bytes_of: dict[str, int] = {}
    for load in loads:
        access = accesses.get(load.operation.line)
        if access is None:
            continue
        names = access.value.arguments & kernel.lengths.keys()
        tensors = [name for name in names if kernel.values.is_in(access.value, name)]
        for tensor in tensors if len(tensors) == 1 else ():
            bytes_of[tensor] = kernel.lengths[tensor] * access.tensor.bytes
            loop = next((loop.line for loop in loops_around(load.operation)), 0)
            together.setdefault((loop, tensor), []).append(load)
    return any(_is_beyond(of_loop, _MOST_BEYOND * bytes_of[tensor]) for (_, tensor), of_loop in together.items())


def _is_beyond(loads: Sequence[_Swept], most: float) -> bool:
    """Whether different tiles have more bytes; which of them are different matters only if all together have."""
    return sum(load.bytes.sum() for load in loads) > most and bool(_numbered(loads)[1].sum() > most)


def _numbered(loads: Sequence[_Swept]) -> tuple[Numbers, Numbers]:
    """Tiles [CTA, load] as numbers, and the bytes of each number: the most that a CTA sweeps of it."""
    width = max(load.begins.shape[1] for load in loads)
    begins = [np.pad(load.begins, ((0, 0), (width - load.begins.shape[1], 0))) for load in loads]
    rows = np.concatenate(begins)
    first, inverse = different(rows.T, len(rows))
    tiles = inverse.reshape(len(loads), -1).T
    sizes = np.zeros(len(first), np.int64)
    np.maximum.at(sizes, tiles, np.stack([load.bytes for load in loads], axis=1))
    return tiles, sizes


def different(columns: Iterable[Numbers], rows: int) -> tuple[Numbers, Numbers]:
    """Where each different row of a table is first, and which of them each row is; in the order of the rows.

    columns: of the table, a number for each of `rows` rows, or one for all. numpy's `unique` with an axis takes several
    times as long, which is seconds of a large grid and an unrolled loop: here each row becomes one number.
    """
    key: Numbers = np.zeros(rows, np.int64)
    count = 1
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        places, many = column - low, high - low + 1
        if many > _LARGEST_KEY // count:
            (key, count), (places, many) = _ranked(key), _ranked(column)
        key, count = key * many + places, count * many
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    return first, inverse


def _ranked(numbers: Numbers) -> tuple[Numbers, int]:
    """The place of each number among the different ones, in order, and how many there are."""
    values, places = np.unique(numbers, return_inverse=True)
    return places, len(values)


def _tensor(kernel: Kernel, origins: Origins, op: Operation) -> Value | None:
    """What stands for the tensor of a descriptor: its address, or the argument that it is.

    In the kernel a descriptor is made in memory (`ttng.tensormap_create`), and then read from there.
    """
    made = origins.maker(op, 0)
    if made is None:
        return origins.argument(op, 0)
    if made.name == "tt.make_tensor_descriptor":
        return origins.operand(made, 0)
    place = origins.maker(made, 0)
    written = [one for one in kernel.named("ttng.tensormap_create") if origins.maker(one, 0) is place]
    return origins.operand(written[0], 1) if place is not None and len(written) == 1 else None


def _cycles(kernel: Kernel, loads: Sequence[Operation], times: Mapping[int, float]) -> float:
    """Cycles of an SM for what a CTA does: the longest of its MMAs, its arithmetic, and what L2 gives it.

    times: how often it does each operation, by the operation's line.
    """
    done = [op for op in kernel.operations if op.line in times]
    mmas = sum(times[op.line] * _mma_cycles(kernel, op) for op in done if op.name in MMAS)
    loaded = sum(times[op.line] * _distinct(kernel, op) for op in loads)
    arithmetic = sum(times[op.line] * arithmetic_cycles(kernel, [op]) for op in done)
    return max(mmas / MMA_SHARE, loaded / H200.l2_bytes_per_cycle, arithmetic)


def _mma_cycles(kernel: Kernel, op: Operation) -> float:
    """Of an SM's tensor cores at their peak rate, which halves where an operand has twice the bits."""
    shape = mma_shape(op)
    rate = kernel.arch.flop_per_cycle["bf16"] * 2 / max(element_bytes(mma_element(op)), 1)
    return 2 * math.prod(shape) / rate if shape is not None else 0.0
