"""Which addresses a CTA asks for in the iterations of its loops."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.kernel import Access, Kernel, loops_around
from kperf.diagnose.occupancy import ctas
from kperf.diagnose.thresholds import IN_LOOP
from kperf.ir.ttgir import Operation
from kperf.ir.values import NextIteration

_FIRST = 32
"""Iterations of a loop whose addresses are compared: a window has fewer taps along a dimension."""


@dataclass(frozen=True)
class Swept:
    """An access, and the addresses that it asks for in so many iterations (`times`) of the loops around it."""

    access: Access
    addresses: NDArray[np.int64]
    times: int


def swept_by(kernel: Kernel, access: Access, loops: Sequence[Operation] | None = None) -> Swept | None:
    """Of the iterations of loops around an access, of each at most the first few; None where they are unknown.

    loops: all that are around it, unless they are given.
    """
    addresses, times = np.unique(access.value.numbers), 1
    for loop in loops_around(access.operation) if loops is None else loops:
        count = kernel.iterations(loop)
        count = IN_LOOP if count is None else max(min(count, _FIRST), 1)
        step = step_of(kernel, loop, access)
        if step is None:
            return None
        addresses = np.unique(addresses + step * np.arange(count)[:, None])
        times *= count
    return Swept(access, addresses, times)


def step_of(kernel: Kernel, loop: Operation, access: Access) -> int | None:
    """Bytes by which a load's addresses move from one iteration to the next; None where they do not move together."""
    if loop.name != "scf.for" or access.value.loaded:
        return None
    later = NextIteration(kernel.values, loop).operand(access.operation, 0)
    steps = None if later is None else np.unique(later.numbers - access.value.numbers)
    return int(steps[0]) if steps is not None and len(steps) == 1 else None


def fits_l1(kernel: Kernel, size: int) -> bool:
    """Whether L1 keeps so many bytes of each CTA of an SM."""
    if kernel.resources is None:
        return False
    resident = max(ctas(kernel), 1)
    return resident * size <= kernel.arch.l1_bytes(resident, kernel.resources.shared_bytes)
