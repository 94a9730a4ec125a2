"""How long kernels ran by CUPTI's activity records, as torch.profiler gives them."""

import warnings
from collections.abc import Callable

import torch
from torch._C._autograd import DeviceType
from torch.profiler import ProfilerActivity, profile


def kernel_times(call: Callable[[], object]) -> list[tuple[str, float]]:
    """Name and microseconds of each kernel that `call` launches, in the order of their start, without copies and sets.

    CUPTI has one subscriber in a process: not to be mixed with Proton's.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that events are cleared at the end of a cycle: there is one
        with profile(activities=[ProfilerActivity.CUDA]) as profiled:
            call()
            torch.cuda.synchronize()
    events = [event for event in profiled.events() if event.device_type == DeviceType.CUDA]
    events.sort(key=lambda event: event.time_range.start)
    return [(event.name, event.time_range.elapsed_us()) for event in events if not event.name.startswith("Mem")]
