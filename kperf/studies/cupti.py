"""How long kernels ran by CUPTI's activity records, as torch's profilers give them."""

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from kperf.compat.torch import DeviceType

Kernels = list[tuple[str, float]]
"""Name and microseconds of each kernel, in the order of their start."""


def kernel_times(call: Callable[[], object], trace: Path | None = None) -> Kernels:
    """The kernels that `call` launches, without copies and sets, by torch.profiler; its Chrome trace goes to `trace`.

    CUPTI has one subscriber in a process: not to be mixed with Proton's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that events are cleared at the end of a cycle: there is one
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            call()
            torch.cuda.synchronize()
    if trace is not None:
        profiled.export_chrome_trace(str(trace))
    return kernels_among(profiled.events())


def autograd_kernel_times(call: Callable[[], object]) -> Kernels:
    """Likewise by torch.autograd.profiler, which records the operators on the CPU too.

    Without Kineto it puts CUDA events around operators instead, and sees no kernel.
    """
    with torch.autograd.profiler.profile(use_device="cuda", use_kineto=True) as profiled:
        call()
        torch.cuda.synchronize()
    return kernels_among(profiled.function_events or [])


def kernels_among(events: Iterable[Any]) -> Kernels:
    """Of a profiler's events the kernels; a copy on the device is one where torch makes it so."""
    kernels = [event for event in events if event.device_type == DeviceType.CUDA and not event.is_user_annotation]
    kernels.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us()) for event in kernels if not event.name.startswith("Memset")]
