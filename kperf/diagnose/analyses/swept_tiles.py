"""Which tiles the loads of a launch's CTAs sweep, and of how many bytes."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from kperf.diagnose.analyses.cta_order import TilesInOrder, iterations_of_ctas
from kperf.diagnose.analyses.different_rows import Numbers, different
from kperf.diagnose.analyses.loops import largest_bytes
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import TMA_LOADS, loops_around
from kperf.ir.layouts import tensor_types
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value

_MOST_BEYOND = 1.25


@dataclass(frozen=True)
class SweptTiles:
    """What a load brings each CTA: `begins` [CTA, ...] tells its tile from others, `bytes` is the tile's sweep."""

    operation: Operation
    begins: Numbers
    bytes: Numbers


def all_swept(kernel: Kernel, turns: TilesInOrder, loads: Sequence[Operation]) -> list[SweptTiles] | None:
    """What these loads bring; None if one of them is not known, or if none brings anything."""
    swept = [one for op in loads if (one := _swept(kernel, turns, op)) is not None]
    return swept if len(swept) == len(loads) and any(load.bytes.any() for load in swept) else None


def _swept(kernel: Kernel, turns: TilesInOrder, op: Operation) -> SweptTiles | None:
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
    times = iterations_of_ctas(turns, None, [loop for loop in loops_around(op) if loop.line in along])
    if len(known) < len(values) or times is None:
        return None
    size = distinct_bytes(kernel, op)
    columns = [np.broadcast_to(one, turns.count) for one in (*(value.numbers for value in known), np.array(size))]
    return SweptTiles(op, np.stack(columns, axis=1), times * size)


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


def distinct_bytes(kernel: Kernel, op: Operation) -> int:
    """Bytes of the tile of a load, the same ones once."""
    found = next((access.tile_bytes for access in kernel.accesses if access.operation is op), largest_bytes(op))
    return min(found, largest_bytes(op))


def of_equal_parts(kernel: Kernel, swept: Sequence[SweptTiles] | None) -> list[SweptTiles] | None:
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


def is_shared(load: SweptTiles) -> bool:
    """Whether several CTAs load the same tile, and others another one."""
    first, _ = different(load.begins.T, len(load.begins))
    return 1 < len(first) < len(load.begins)


def overlap(kernel: Kernel, loads: Sequence[SweptTiles]) -> bool:
    """Whether tiles of a loop, or of a kernel without loops, are larger than their tensor.

    They are a convolution's windows, say, whose bytes are not different.
    Tiles at the ends of a tensor may reach beyond it.
    """
    accesses = {access.operation.line: access for access in kernel.accesses}
    together: dict[tuple[int, str], list[SweptTiles]] = {}
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


def _is_beyond(loads: Sequence[SweptTiles], most: float) -> bool:
    """Whether different tiles have more bytes; which of them are different matters only if all together have."""
    return sum(load.bytes.sum() for load in loads) > most and bool(numbered(loads)[1].sum() > most)


def numbered(loads: Sequence[SweptTiles]) -> tuple[Numbers, Numbers]:
    """Tiles [CTA, load] as numbers, and the bytes of each number: the most that a CTA sweeps of it."""
    width = max(load.begins.shape[1] for load in loads)
    begins = [np.pad(load.begins, ((0, 0), (width - load.begins.shape[1], 0))) for load in loads]
    rows = np.concatenate(begins)
    first, inverse = different(rows.T, len(rows))
    tiles = inverse.reshape(len(loads), -1).T
    sizes = np.zeros(len(first), np.int64)
    np.maximum.at(sizes, tiles, np.stack([load.bytes for load in loads], axis=1))
    return tiles, sizes
