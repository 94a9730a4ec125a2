"""Which bytes of the sectors that an access moves are used: by a request, a CTA, its neighbours."""

import re
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.pieces import offset_of_rows
from kperf.diagnose.analyses.sweeps import fits_l1, swept_by
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, STORES, loops_around
from kperf.diagnose.thresholds import POOR_SECTOR_USE, SECTOR_BYTES
from kperf.ir.arithmetic import SHIFTS

MOST_PARTS = 16
"""Elements that lie at most so far apart are parts of a record: a colour, a point, a complex number."""
_NEIGHBOURS = (-1, 0, 1)
"""CTAs before and behind one, along each axis of the grid, whose addresses are compared with its own."""
_EVEN = frozenset(
    {*SHIFTS, "arith.muli", "arith.constant", "tt.make_range", "tt.get_program_id", "tt.get_num_programs", "scf.for"}
)
"""What addresses are computed of that move as far from any CTA, along an axis, to the next one."""


def is_broadcast(kernel: Kernel, access: Access) -> bool:
    """Whether a load uses little of its sectors because threads of a warp need the same few elements, side by side.

    The layout of a vector that is broadcast is a slice of its tile's: threads along the broadcast load the same.
    """
    return access.operation.name in LOADS and access.requests_of_runs and not is_from_memory(kernel, access)


def has_layout_of(kernel: Kernel, access: Access, poor: list[Access]) -> bool:
    """Whether its row lies in order, and its threads do not, because the compiler made them those of another access.

    A row of factors has the layout of the tile with which it is multiplied: what fixes the tile fixes the row.
    """
    tiles = [_layout(one) for one in poor if not one.has_neighbours]
    return access.has_neighbours and not is_from_memory(kernel, access) and _layout(access) in tiles


def is_cut(kernel: Kernel, access: Access) -> bool:
    """Whether a thread's elements lie side by side and are asked for one by one, because rows begin unaligned.

    All requests of a warp together use their sectors: what is to change is where rows begin, not who loads what.
    """
    places = kernel.layouts.elements(access.tensor)
    if places is None or offset_of_rows(access) == 0:
        return False
    sectors = access.value.numbers[tuple(np.moveaxis(places, -1, 0))] // SECTOR_BYTES
    touched = sum(len(np.unique(warp)) for warp in sectors)
    elements = sectors[0].size * len(sectors)
    return bool(elements * access.tensor.bytes >= POOR_SECTOR_USE * touched * SECTOR_BYTES)


def _layout(access: Access) -> str:
    """The layout of a tile, and of its rows and columns."""
    names: list[str] = re.findall(r"#\w+", access.tensor.layout)
    return names[-1] if names else ""


def is_from_memory(kernel: Kernel, access: Access) -> bool:
    """Whether what is not used moves from device memory too, and not from the cache alone."""
    return access.tile_sector_use < POOR_SECTOR_USE and not _is_window(kernel, access)


def _is_window(kernel: Kernel, access: Access) -> bool:
    """Whether other iterations load what one leaves between its elements, and L1 keeps it: the taps of a window."""
    if access.operation.name in STORES or not 2 <= distance(access) <= MOST_PARTS:
        return False
    loops = loops_around(access.operation)
    swept = [swept_by(kernel, access, loops[: depth + 1]) for depth in range(len(loops))]
    return any(
        one is not None
        and _use(one.addresses, access) >= POOR_SECTOR_USE
        and fits_l1(kernel, len(np.unique(one.addresses // SECTOR_BYTES)) * SECTOR_BYTES)
        for one in swept
    )


def is_alone(kernel: Kernel, access: Access) -> bool:
    """Whether nothing in the launch uses the bytes between the elements, as of a diagonal: there is no better tile.

    Elements that lie closer are parts of records, which may be kept in a tensor for each part.
    """
    if kernel.grid is None or access.value.loaded or distance(access) <= MOST_PARTS:
        return False
    tensors = kernel.tensors_of(access.operation)
    alike = [one for one in kernel.accesses if one.value.arguments & tensors]
    known = [swept.addresses for one in alike if (swept := swept_by(kernel, one)) is not None]
    even = all(op.name in _EVEN for one in alike for op in kernel.values.sources(one.operation, 0))
    if len(known) < len(alike) or not even:
        return False
    addresses = np.unique(np.concatenate(known))
    for axis in (axis for axis, length in zip("xyz", kernel.grid, strict=True) if length > 1):
        moved = np.unique(replace(kernel, next_along=axis).reread(access).value.numbers - access.value.numbers)
        if len(moved) > 1 or 0 < abs(moved[0]) < SECTOR_BYTES:
            return False
        addresses = np.unique(addresses + moved * np.array(_NEIGHBOURS)[:, None])
    return _use(addresses, access) < POOR_SECTOR_USE


def _use(addresses: NDArray[np.int64], access: Access) -> float:
    """Used share of the sectors in which these distinct addresses are."""
    return len(addresses) * access.tensor.bytes / (len(np.unique(addresses // SECTOR_BYTES)) * SECTOR_BYTES)


def beside(kernel: Kernel, access: Access) -> list[Access]:
    """The other accesses in its place that use what it leaves of its sectors; empty where there are none."""
    store, loops = access.operation.name in STORES, loops_around(access.operation)[:1]
    alike = [
        one
        for one in kernel.accesses
        if (one.operation.name in STORES) == store
        and loops_around(one.operation)[:1] == loops
        and one.value.arguments == access.value.arguments
        and one.tensor.bytes == access.tensor.bytes
    ]
    addresses = np.unique(np.concatenate([one.value.numbers.ravel() for one in alike]))
    return [one for one in alike if one is not access] if _use(addresses, access) >= POOR_SECTOR_USE else []


def distance(access: Access) -> int:
    """Elements from one to the next along the dimension in which they are closest, of those with equal steps."""
    numbers = access.value.numbers
    steps = [np.abs(np.diff(numbers, axis=axis)) for axis, length in enumerate(numbers.shape) if length > 1]
    return min((int(step.max()) // access.tensor.bytes for step in steps if 0 < step.max() == step.min()), default=0)
