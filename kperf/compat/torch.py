"""Torch's private interfaces outside of Inductor's graph (`kperf.compat.inductor_graph`)."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch._C._autograd import DeviceType

__all__ = ["DeviceType"]

INDUCTOR_VARIABLES = {
    "TORCHINDUCTOR_USE_STATIC_CUDA_LAUNCHER": "0",  # it goes past `CompiledKernel.run`
    "TORCHINDUCTOR_COMPILE_THREADS": "1",  # kernels from other processes come without their source
}
"""With these in the environment, Inductor's kernels are launched as all others are."""


def spin(cycles: int) -> None:
    """Keep the current stream of the GPU busy for so many cycles."""
    torch.cuda._sleep(cycles)


def inductor_autotuner() -> type | None:
    """Inductor's autotuner, whose method `bench` launches; None as long as Inductor is not imported."""
    module = sys.modules.get("torch._inductor.runtime.triton_heuristics")
    return None if module is None else module.CachingAutotuner


@contextmanager
def compiled_anew(shapes: int) -> Iterator[None]:
    """Within it, torch.compile takes so many shapes of a function, and a backward pass may be run again and again."""
    with torch._dynamo.config.patch(recompile_limit=shapes), torch._functorch.config.patch(donated_buffer=False):
        yield
