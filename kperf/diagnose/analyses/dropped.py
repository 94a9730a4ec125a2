"""Bytes that a kernel loads and then drops by a condition that is the same for whole rows."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.loops import tile_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import TMA_LOADS
from kperf.diagnose.thresholds import SECTOR_BYTES

KEPT = 0.5
"""Of two sides, or of one beside a constant, where nothing says how often the condition holds."""
_MIXED = 1.25
"""Values of the condition in a sector, in the mean: where rows begin inside of sectors, neighbours share some."""


def is_even(condition: NDArray[Any], access: Access) -> bool:
    """Whether a condition is the same for all elements of each sector that an access loads.

    condition: numbers of which equal ones stand for equal values, of a shape that is broadcast to the tile's.
    """
    numbers = access.value.numbers
    sectors = numbers // SECTOR_BYTES
    each = np.stack([sectors.ravel(), np.broadcast_to(condition, numbers.shape).ravel()])
    return bool(np.unique(each, axis=1).shape[1] <= _MIXED * len(np.unique(sectors)))


def gain_without(kernel: Kernel, dropped: float) -> float:
    """Bytes that a CTA moves now over those without `dropped` of them; arithmetic stays.

    Of the 1.48 x of state_reset (H100), which moves three tiles in place of two, this gives 1.5.
    """
    moved = sum(moved_by(kernel, access) for access in kernel.accesses)
    moved += sum(tile_bytes(op) * kernel.times(op) for op in kernel.named(*TMA_LOADS))
    computed = arithmetic_of_cta(kernel, kernel.operations)
    computed *= kernel.arch.memory_bytes_per_cycle
    return max(moved, computed) / max(moved - dropped, computed, 1.0)


def moved_by(kernel: Kernel, access: Access) -> float:
    """What a CTA's access moves to or from device memory: not what the whole grid shares, which L2 keeps."""
    asked = access.asked_bytes * kernel.times(access.operation)
    tensors = access.value.arguments & kernel.lengths.keys()
    if kernel.grid is None or len(tensors) != 1:
        return asked if access.value.program or access.value.loaded else 0.0
    whole = kernel.lengths[next(iter(tensors))] * access.tensor.bytes
    return min(asked, whole / math.prod(kernel.grid))
