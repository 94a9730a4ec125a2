"""Loads that pass by the L1 cache, of bytes that L1 could keep."""

import math
import re
from collections.abc import Sequence

from kperf.arch import (
    H200,
    H200_FIRST_L2_LATENCY,
    H200_L1_BYTES_PER_CYCLE,
    H200_L1_LATENCY,
    H200_L2_LINE_BYTES_PER_CYCLE,
)
from kperf.diagnose.analyses.atomics import reads_atomics
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, bytes_or_mma_cycles
from kperf.diagnose.analyses.sweeps import Swept
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, MMAS, STORES, TMA_STORES, inside
from kperf.diagnose.thresholds import LINE_BYTES, SECTOR_BYTES
from kperf.ir.ttgir import Operation

PAST_L1 = re.compile(r"cacheModifier = (cg|cv)|isVolatile = true")
_CROWDED = 2
"""How many times as long L2 may take where all SMs load from it at once. Not measured: it only widens the interval."""
_WIDER = H200_L1_BYTES_PER_CYCLE / H200.l2_bytes_per_cycle
_SOONER = H200_FIRST_L2_LATENCY / H200_L1_LATENCY
"""What L1 gives where bytes decide, and where waiting does. Their geometric mean is 3.9: of the 49 taps of a
convolution 3.55 x were measured (H100)."""


def passes_l1(op: Operation) -> bool:
    """By a cache modifier, or as it is volatile. The copies that the compiler makes of other loads always pass L1."""
    return op.name == "tt.load" and PAST_L1.search(op.rest) is not None


def may_wait(kernel: Kernel) -> bool:
    """Whether a CTA may learn while it runs that others wrote: by an atomic, or by a load that a branch hangs on."""
    of_branches = (op for branch in kernel.named("scf.if") for op in kernel.values.sources(branch, 0))
    of_loops = (op for loop in kernel.named("scf.while") for op in inside(loop))
    return reads_atomics(kernel) or any(passes_l1(op) for op in (*of_branches, *of_loops))


def gain_of_l1(kernel: Kernel, loads: Sequence[Swept], sectors: int) -> tuple[float, float]:
    """The likely and the most gain of cycles of an SM for a CTA's loads past L1, where nothing else takes as long.

    From L2 come each request's sectors, and later each sector once. Memory brings each sector once as it is.
    """
    requests = sum(_sectors(one, sectors) * one.times for one in loads)
    past = sum(_sectors(one, sectors) * SECTOR_BYTES * kernel.times(one.access.operation) for one in loads)
    once = past * sectors / requests
    lines = {one.access.operation.line for one in loads}
    others = [access for access in kernel.accesses if access.operation.line not in lines]
    moved = once + sum(access.asked_bytes * kernel.times(access.operation) for access in others)
    computed = arithmetic_of_cta(kernel, kernel.operations)
    multiplied = sum(bytes_or_mma_cycles(kernel, [op]) * kernel.times(op) for op in kernel.named(*MMAS))
    least = max(moved / kernel.arch.memory_bytes_per_cycle, computed, multiplied)
    rate = H200.l2_bytes_per_cycle
    of_lines = math.ceil(sectors * SECTOR_BYTES / LINE_BYTES) * H200_L2_LINE_BYTES_PER_CYCLE / H200.sms
    shared = of_lines if any(one.of_sm for one in loads) else math.inf  # all SMs load from the same lines

    def gain(crowd: float, faster: float) -> float:
        """crowd: how many times as long L2 takes. faster: L1 than an L2 from whose lines few load."""
        later = max(past / faster, once) * crowd / rate
        return max(past * crowd / min(rate, shared), least) / max(later, least)

    return gain(1, math.sqrt(_WIDER * _SOONER)), gain(_CROWDED, _SOONER)


def _sectors(load: Swept, sectors: int) -> float:
    """That a load's requests touch, of so many that it may touch: an index that is data is one of a table by chance."""
    access = load.access
    if not load.of_sm:
        return access.sectors
    of_request = access.used_bytes / access.tensor.bytes / access.requests
    return float(access.requests * sectors * (1 - (1 - 1 / sectors) ** of_request))


def writes(kernel: Kernel, tensors: frozenset[str]) -> bool:
    """Whether the kernel writes to one of these tensors, or to one that may be any: by TMA, or at a pointer read."""
    if any(True for _ in kernel.named(*TMA_STORES)):
        return True
    return any(not (to := kernel.tensors_of(op)) or to & tensors for op in kernel.named(*STORES, *ATOMICS))
