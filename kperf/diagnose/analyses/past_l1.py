"""Loads that pass by the L1 cache, of bytes that L1 could keep."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from kperf.arch import (
    H200,
    H200_FIRST_L2_LATENCY,
    H200_L1_BYTES_PER_CYCLE,
    H200_L1_LATENCY,
    H200_L2_LINE_BYTES_PER_CYCLE,
)
from kperf.diagnose.analyses.atomics import reads_atomics
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, bytes_or_mma_cycles
from kperf.diagnose.analyses.sweeps import Swept, fits_l1, swept_by, table_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, MMAS, STORES, TMA_STORES, inside
from kperf.diagnose.thresholds import LINE_BYTES, MEDIUM_GAIN, SECTOR_BYTES
from kperf.ir.ttgir import Operation

_PAST_L1 = re.compile(r"cacheModifier = (cg|cv)|isVolatile = true")
_AGAIN = 2
"""Bytes that loads past L1 ask for, for each byte that is another one."""
_CROWDED = 2
"""How many times as long L2 may take where all SMs load from it at once. Not measured: it only widens the interval."""
_WIDER = H200_L1_BYTES_PER_CYCLE / H200.l2_bytes_per_cycle
_SOONER = H200_FIRST_L2_LATENCY / H200_L1_LATENCY
"""What L1 gives where bytes decide, and where waiting does. Their geometric mean is 3.9: of the 49 taps of a
convolution 3.55 x were measured (H100)."""


@dataclass(frozen=True)
class PastL1:
    """One tensor's loads past L1, of bytes that L1 could keep.

    sectors: that they may touch. size: how many different bytes they load.
    """

    kernel: Kernel = field(repr=False)
    loads: tuple[Swept, ...]
    sectors: int
    size: int

    @property
    def modifier(self) -> str:
        """The cache modifier of the first load; empty where it is volatile."""
        found = _PAST_L1.search(self.loads[0].access.operation.rest)
        return (found[1] or "") if found is not None else ""

    @property
    def of_sm(self) -> bool:
        """Whether all CTAs of an SM load the same bytes."""
        return any(one.of_sm for one in self.loads)

    @property
    def times(self) -> float:
        """How often they load each byte."""
        return sum(one.access.used_bytes * one.times for one in self.loads) / self.size

    @property
    def gain(self) -> tuple[float, float]:
        """The likely and the most gain of cycles of an SM for a CTA's loads past L1, where nothing else takes as long.

        From L2 come each request's sectors, and later each sector once. Memory brings each sector once as it is.
        """
        kernel = self.kernel
        requests = sum(_sectors(one, self.sectors) * one.times for one in self.loads)
        past = sum(
            _sectors(one, self.sectors) * SECTOR_BYTES * kernel.times(one.access.operation) for one in self.loads
        )
        once = past * self.sectors / requests
        lines = {one.access.operation.line for one in self.loads}
        others = [access for access in kernel.accesses if access.operation.line not in lines]
        moved = once + sum(access.asked_bytes * kernel.times(access.operation) for access in others)
        computed = arithmetic_of_cta(kernel, kernel.operations)
        multiplied = sum(bytes_or_mma_cycles(kernel, [op]) * kernel.times(op) for op in kernel.named(*MMAS))
        least = max(moved / kernel.arch.memory_bytes_per_cycle, computed, multiplied)
        rate = H200.l2_bytes_per_cycle
        of_lines = math.ceil(self.sectors * SECTOR_BYTES / LINE_BYTES) * H200_L2_LINE_BYTES_PER_CYCLE / H200.sms
        shared = of_lines if self.of_sm else math.inf  # all SMs load from the same lines

        def gain(crowd: float, faster: float) -> float:
            """crowd: how many times as long L2 takes. faster: L1 than an L2 from whose lines few load."""
            later = max(past / faster, once) * crowd / rate
            return max(past * crowd / min(rate, shared), least) / max(later, least)

        return gain(1, math.sqrt(_WIDER * _SOONER)), gain(_CROWDED, _SOONER)


def past_l1(kernel: Kernel) -> Iterator[PastL1]:
    """Loads that pass by L1 and whose bytes the CTA loads again, as the taps of a stencil, or gathers from a table.

    A tensor that the kernel writes may need them, and so may all tensors of a kernel that waits for what others write:
    L1 does not see it.
    """
    of_tensor: dict[frozenset[str], list[Swept]] = defaultdict(list)
    for access in kernel.accesses:
        tensors = kernel.memory_of(access.operation)
        if not tensors or not passes_l1(access.operation) or _writes(kernel, tensors):
            continue
        if (swept := table_of(kernel, access) or swept_by(kernel, access)) is not None:
            of_tensor[tensors].append(swept)
    for loads in of_tensor.values() if of_tensor and not may_wait(kernel) else ():
        addresses = np.unique(np.concatenate([one.addresses for one in loads]))
        sectors = len(np.unique(addresses // SECTOR_BYTES))
        past = PastL1(kernel, tuple(loads), sectors, len(addresses) * loads[0].access.tensor.bytes)
        fits = past.times >= _AGAIN and fits_l1(kernel, sectors * SECTOR_BYTES, of_sm=past.of_sm)
        if fits and past.gain[0] >= MEDIUM_GAIN:
            yield past


def passes_l1(op: Operation) -> bool:
    """By a cache modifier, or as it is volatile. The copies that the compiler makes of other loads always pass L1."""
    return op.name == "tt.load" and _PAST_L1.search(op.rest) is not None


def may_wait(kernel: Kernel) -> bool:
    """Whether a CTA may learn while it runs that others wrote: by an atomic, or by a load that a branch hangs on."""
    of_branches = (op for branch in kernel.named("scf.if") for op in kernel.values.sources(branch, 0))
    of_loops = (op for loop in kernel.named("scf.while") for op in inside(loop))
    return reads_atomics(kernel) or any(passes_l1(op) for op in (*of_branches, *of_loops))


def _sectors(load: Swept, sectors: int) -> float:
    """That a load's requests touch, of so many that it may touch: an index that is data is one of a table by chance."""
    access = load.access
    if not load.of_sm:
        return access.sectors
    of_request = access.used_bytes / access.tensor.bytes / access.requests
    return float(access.requests * sectors * (1 - (1 - 1 / sectors) ** of_request))


def _writes(kernel: Kernel, tensors: frozenset[str]) -> bool:
    """Whether the kernel writes to one of these tensors, or to one that may be any: by TMA, or at a pointer read."""
    if any(True for _ in kernel.named(*TMA_STORES)):
        return True
    return any(not (to := kernel.tensors_of(op)) or to & tensors for op in kernel.named(*STORES, *ATOMICS))
