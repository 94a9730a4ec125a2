"""What a loop that loads one number at a time would gain, if its CTA loaded all of them at once."""

import math
import re
from collections.abc import Sequence

from kperf.arch import (
    H100_FENCE_NS,
    H100_UPDATE_NS,
    H200,
    H200_COPY_GB_PER_S,
    H200_CTA_NS,
    H200_FIRST_L2_LATENCY,
    H200_L1_LATENCY,
)
from kperf.diagnose.analyses.occupancy import waves_of
from kperf.diagnose.analyses.warps import issue_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, inside
from kperf.diagnose.thresholds import LAUNCH_MS, MEMORY_LATENCY_CYCLES, SECTOR_BYTES
from kperf.ir.layouts import element_bytes
from kperf.ir.ttgir import Operation

_ORDERED = re.compile(r"\s*\w+, (acq_rel|acquire|release)\b")
_POINTER = re.compile(r"!tt\.ptr<(\w+)>")
_INTERVAL = 3.0
"""Times more or less: a CTA's reduction, and addresses at which many atomics meet, are not counted."""


def gain_of_all_at_once(
    kernel: Kernel, loop: Operation, loads: Sequence[Operation]
) -> tuple[float, float, float] | None:
    """Speed-up, low and high of the launch; None where its grid or the iterations are not known.

    Each iteration waits for its number; meanwhile the SM issues the instructions of its other CTAs, whose threads all
    do the same work. At once, each CTA waits for memory once. Atomics stay, but each thread passes one fence alone.
    Of matvec_scalars this estimates 38 x, of which 36 x were measured (H200). Of two passes that scatter 16 numbers
    with ordered atomics it estimates 9 x and 7 x: with a tile for 128 rows both together gave 4.7 x.
    """
    iterations = kernel.iterations(loop)
    if kernel.grid is None or kernel.resources is None or not iterations:
        return None
    count, mhz = math.prod(kernel.grid), H200.max_mhz / 1e3
    waves = max(waves_of(kernel), 1.0)
    atomics = [op for op in inside(loop) if op.name in ATOMICS]
    fences = H100_FENCE_NS * sum(bool(_ORDERED.match(op.rest)) for op in atomics)
    waiting = sum(_latency(op) for op in loads) / mhz
    each = max(waiting + fences, issue_cycles(kernel, loop) / mhz)
    moved = count * iterations * sum(_own_bytes(kernel, op) for op in loads) / H200_COPY_GB_PER_S
    updates = count * iterations * len(atomics) * H100_UPDATE_NS
    least = LAUNCH_MS * 1e6
    now = least + max(waves * iterations * each, moved, count * H200_CTA_NS, updates)
    once = len(loads) * MEMORY_LATENCY_CYCLES / mhz + math.ceil(iterations / kernel.threads) * fences
    after = least + max(waves * once + moved, count * H200_CTA_NS, updates)
    gain = max(now / after, 1.0)
    return gain, max(gain / _INTERVAL, 1.0), _INTERVAL * gain


def number_bytes(op: Operation) -> int:
    """Of the number that it loads."""
    element = _POINTER.search(op.rest)
    return element_bytes(element[1]) if element is not None else 4


def _own_bytes(kernel: Kernel, op: Operation) -> int:
    """Of the number, where no other CTA loads the same ones, which L2 keeps."""
    value = kernel.values.operand(op, 0)
    return number_bytes(op) if value is None or value.program or value.loaded else 0


def _latency(op: Operation) -> float:
    """Cycles until a number is there: L1 has its neighbours of the sector."""
    return H200_L1_LATENCY + H200_FIRST_L2_LATENCY * number_bytes(op) / SECTOR_BYTES
