"""Which elements of an MMA's tile its store keeps."""

import itertools
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.fillings import Mask
from kperf.diagnose.reading.cta_values import CtaValues, some_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, STORES, loops_around, mask_place, mma_shape
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value

_SIDES = 2
_CTAS = 16
"""Of a launch, for whose masks numbers are computed: they take some 2 ms each."""


def kept_of_products(kernel: Kernel) -> Iterator[tuple[Operation, NDArray[np.bool_]]]:
    """MMAs, and which elements of their tiles are stored in any of some CTAs of a launch; without one, in each CTA."""
    for store in kernel.named(*STORES):
        kept = _kept(kernel, store)
        mma = _product(kernel, store, kept.shape) if kept is not None else None
        if kept is not None and mma is not None:
            yield mma, kept


def _kept(kernel: Kernel, store: Operation) -> NDArray[np.bool_] | None:
    """Which elements of a tile a store writes; None where all are, or that is not known.

    Conditions that are data, or that iterations decide, are taken to hold; without a launch those of CTAs too.
    """
    mask, found = Mask(store, mask_place(store)), np.array(False)
    for values in [kernel.values] if kernel.grid is None else _of_some_ctas(kernel):
        kept = mask.elements(values, lambda value: _is_decided(kernel, value))
        if kept is None or kept.ndim != _SIDES:
            return None
        found = found | kept
        if found.all():
            return None
    return found


def _of_some_ctas(kernel: Kernel) -> Iterator[CtaValues]:
    """Some by chance, and the first and the last along each axis, where tensors begin and end."""
    x, y, z = kernel.grid or (1, 1, 1)
    corners = itertools.product({0, x - 1}, {0, y - 1}, {0, z - 1})
    return (CtaValues(kernel, cta) for cta in dict.fromkeys([*corners, *some_ctas(kernel, _CTAS)]))


def _is_decided(kernel: Kernel, value: Value) -> bool:
    """Whether neither data nor an iteration decides a condition, and the launch says all else that does."""
    is_open = value.loaded or value.iterations or (value.program and kernel.grid is None)
    return not is_open and value.arguments <= kernel.numbers.keys()


def _product(kernel: Kernel, store: Operation, shape: tuple[int, ...]) -> Operation | None:
    """The MMA of this shape of which the stored tile is made; of several the one in the innermost loop."""
    stored = {"amdg.buffer_store": 0}.get(store.name, 1)
    made = [
        op
        for op in kernel.values.sources(store, stored)
        if op.name in MMAS and (found := mma_shape(op)) is not None and found[:2] == shape
    ]
    return max(made, key=lambda op: len(loops_around(op)), default=None)
