"""Samples that the GPU takes of an original kernel, at a launch of the script's, on copies of its tensors.

Events disturb what they time; a sample stops no warp. The kernel is launched a few times more for it, never while
anything is timed, and before the script's own launch: a kernel that works in place may not be launched on what it left.
"""

import math
from dataclasses import dataclass

from kperf.compat import cupti
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import loaded_again
from kperf.errors import UsageError
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.repeated import Repeated

SAMPLES_OF_AN_SM = 256
"""Or up to twice as many: of 132 SMs 34 000 samples, of which a line with 1 % has 340, give or take 5 %."""
_CYCLES_OF_A_MS = 1.5e6
"""About, on any of these GPUs: only how many samples there are depends on it."""
_LEAST_PERIOD, _GREATEST_PERIOD = 7, 24
"""Exponents of two: more often than once in 128 cycles, the GPU loses samples."""
_MOST_LAUNCHES = 16
_MOST_MS = 2000.0


@dataclass(frozen=True)
class Sampled:
    """What was sampled in some launches of a kernel, once in `period_cycles` cycles of an SM.

    dropped: samples that the hardware lost.
    """

    pcs: tuple[cupti.PcSample, ...]
    launches: int
    period_cycles: int
    dropped: int


def plan(milliseconds: float) -> tuple[int, int]:
    """Period, as an exponent of two, and launches that give about `SAMPLES_OF_AN_SM`, of a kernel's time."""
    cycles = max(milliseconds * _CYCLES_OF_A_MS, 1.0)
    period = math.floor(math.log2(max(cycles / SAMPLES_OF_AN_SM, 1.0)))
    period = min(max(period, _LEAST_PERIOD), _GREATEST_PERIOD)
    return period, min(math.ceil(SAMPLES_OF_AN_SM * 2**period / cycles), _MOST_LAUNCHES)


def sample(compiled: CompiledKernel, repeated: Repeated, gpu: Gpu) -> Sampled:
    """Samples of a kernel, at a launch that is still to be made.

    Raises `UsageError` if a launch takes too long, or has no samples, and `cupti.RefusedError` if nothing can be
    sampled in this process.
    """
    if "cubin" not in compiled.asm:
        raise cupti.RefusedError("there is CUPTI for NVIDIA's GPUs alone")
    cupti.current_context()
    with gpu.on(repeated.call.stream):
        milliseconds = _milliseconds(repeated, gpu)
        if milliseconds > _MOST_MS:
            raise UsageError(f"a launch of it takes {milliseconds / 1e3:.1f} s, and to sample it takes three more")
        period, launches = plan(min(milliseconds, _milliseconds(repeated, gpu)))
        with cupti.sampling() as sampler:
            here = repeated.of(*loaded_again(compiled))
            _milliseconds(here, gpu)
            sampler.start(period)
            for _ in range(launches):
                _milliseconds(here, gpu)
            pcs, dropped = sampler.stop(compiled.name)
    if not pcs:
        raise UsageError("the GPU took no samples of it")
    return Sampled(tuple(pcs), launches, 1 << period, dropped)


def _milliseconds(repeated: Repeated, gpu: Gpu) -> float:
    repeated.begin()
    start = gpu.mark(repeated.call.stream)
    repeated.call()
    return gpu.milliseconds(start, gpu.mark(repeated.call.stream))
