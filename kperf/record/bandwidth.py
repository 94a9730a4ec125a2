"""How fast the device memory is: what its clock and bus allow, and what a copy reaches."""

import functools
import statistics

import pynvml
import torch

from kperf.record.device import nvml_handle
from kperf.record.store import Frozen

_COPIED_BYTES = 1 << 28
"""Several times what the L2 caches hold (50 MB on H100 and H200)."""
_ROUNDS = 7


class Bandwidth(Frozen):
    """GB/s of the device memory: `peak` by clock and bus width, `copy` of torch's copy of 256 MiB, reads and writes."""

    peak_gb_per_s: float
    copy_gb_per_s: float


@functools.cache
def measure() -> Bandwidth | None:
    """Of the current GPU, the copy measured once in a process, in some milliseconds.

    None where the GPU has no 512 MiB left for it.
    """
    try:
        source = torch.empty(_COPIED_BYTES, dtype=torch.uint8, device="cuda")
        target = torch.empty_like(source)
    except torch.OutOfMemoryError:
        return None
    times = []
    for _ in range(_ROUNDS):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        target.copy_(source)
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    handle = nvml_handle()
    megahertz = pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM)
    bus_bits = pynvml.nvmlDeviceGetMemoryBusWidth(handle)
    return Bandwidth(
        peak_gb_per_s=2 * megahertz * 1e6 * bus_bits / 8 / 1e9,  # two transfers a clock
        copy_gb_per_s=2 * _COPIED_BYTES / statistics.median(times) / 1e6,
    )
