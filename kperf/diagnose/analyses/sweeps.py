"""Which addresses a CTA asks for in the iterations of its loops."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.arch import H200
from kperf.diagnose.analyses.occupancy import ctas
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import loops_around
from kperf.diagnose.thresholds import IN_LOOP
from kperf.ir.next_iteration import NextIteration
from kperf.ir.ttgir import Operation

_FIRST = 32
"""Iterations of a loop whose addresses are compared: a window has fewer taps along a dimension."""


@dataclass(frozen=True)
class Swept:
    """An access, and the addresses that it asks for in so many iterations (`times`) of the loops around it.

    of_sm: whether they are those of all CTAs of an SM, in all their iterations.
    """

    access: Access
    addresses: NDArray[np.int64]
    times: int
    of_sm: bool = False


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


def table_of(kernel: Kernel, access: Access) -> Swept | None:
    """Of a gather from a tensor of a launch its whole length, and how often an SM does it; None of other accesses.

    Any element may be loaded by any CTA.
    """
    tensors = [name for name in kernel.tensors_of(access.operation) if name in kernel.lengths]
    loops = loops_around(access.operation)
    if not access.value.scattered or kernel.grid is None or any(loop.name != "scf.for" for loop in loops):
        return None
    first = kernel.values.of(access.operation.parent, f"%{tensors[0]}") if len(tensors) == 1 else None
    if first is None or kernel.lengths[tensors[0]] * access.tensor.bytes > kernel.arch.cache_bytes:
        return None
    addresses = first.numbers + np.arange(kernel.lengths[tensors[0]]) * access.tensor.bytes
    ctas_of_sm = max(math.prod(kernel.grid) // H200.sms, 1)
    return Swept(access, addresses, kernel.times(access.operation) * ctas_of_sm, of_sm=True)


def fits_l1(kernel: Kernel, size: int, *, of_sm: bool = False) -> bool:
    """Whether L1 keeps so many bytes of each CTA of an SM, or of all of them together (`of_sm`)."""
    if kernel.resources is None:
        return False
    resident = max(ctas(kernel), 1)
    return (1 if of_sm else resident) * size <= kernel.arch.l1_bytes(resident, kernel.resources.shared_bytes)
