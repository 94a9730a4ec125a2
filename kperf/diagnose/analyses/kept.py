"""Which elements of an MMA's tile its store keeps."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, STORES, loops_around, mask_place, mma_shape
from kperf.ir.ttgir import Operation

_SIDES = 2


def kept_of_products(kernel: Kernel) -> Iterator[tuple[Operation, NDArray[np.bool_]]]:
    """MMAs, and which elements of their tiles are stored: those where each CTA and launch stores the same ones."""
    for store in kernel.named(*STORES):
        kept = _kept(kernel, store)
        mma = _product(kernel, store, kept.shape) if kept is not None else None
        if kept is not None and mma is not None:
            yield mma, kept


def _kept(kernel: Kernel, store: Operation) -> NDArray[np.bool_] | None:
    """Which elements of a tile a store writes; None where that is not the same for each CTA and launch."""
    mask = kernel.values.operand(store, mask_place(store))
    if mask is None or mask.numbers.ndim != _SIDES or mask.arguments or mask.program or mask.loaded:
        return None
    return np.asarray(mask.numbers, dtype=np.bool_)


def _product(kernel: Kernel, store: Operation, shape: tuple[int, ...]) -> Operation | None:
    """The MMA of this shape of which the stored tile is made; of several the one in the innermost loop."""
    stored = {"amdg.buffer_store": 0}.get(store.name, 1)
    made = [
        op
        for op in kernel.values.sources(store, stored)
        if op.name in MMAS and (found := mma_shape(op)) is not None and found[:2] == shape
    ]
    return max(made, key=lambda op: len(loops_around(op)), default=None)
