"""An AMD GPU in NVIDIA's place: what `device` asks of NVML, asked of torch and of AMD SMI. Not executed on one yet."""

import importlib.util
import time
from typing import Any

import torch

from kperf.arch import GFX942
from kperf.record.store import DeviceState


def why_not_measured() -> str | None:
    """None if plain Triton kernels can be timed on this machine's AMD GPU, else one sentence that says why not."""
    if not torch.version.hip:
        return "torch is not built for ROCm: docker/rocm.dockerfile has one that is"
    if not torch.cuda.is_available():
        return "ROCm shows no GPU: start the container with --device /dev/kfd --device /dev/dri"
    name = torch.cuda.get_device_properties().gcnArchName.partition(":")[0]
    if name != GFX942.name:
        return f"{torch.cuda.get_device_name()} is {name}: use a machine with an MI300X ({GFX942.name})"
    if importlib.util.find_spec("amdsmi") is None:
        return "amdsmi is not installed, which says at what clock a GPU works: install the one of ROCm"
    return None


def device_state() -> DeviceState:
    """Clock, power and temperature now; AMD SMI gives means over its last period, and no reason for a lower clock."""
    return DeviceState(
        sm_mhz=torch.cuda.clock_rate(),
        power_w=float(torch.cuda.power_draw()),  # watts here, whatever torch's own words say of NVIDIA's
        temperature_c=torch.cuda.temperature(),
        throttle=[],
        at_s=time.time(),
    )


def other_processes() -> int:
    """Processes on the GPU beside this one."""
    return max(0, str(torch.cuda.list_gpu_processes()).count("process ") - 1)


def environment() -> dict[str, Any]:
    """What an environment says of the GPU and its driver; `cuda` is ROCm's version."""
    smi: Any = importlib.import_module("amdsmi")
    smi.amdsmi_init()
    properties = torch.cuda.get_device_properties()
    handle = smi.amdsmi_get_processor_handles()[torch.cuda.current_device()]
    return {
        "compute_capability": properties.gcnArchName.partition(":")[0],
        "driver": str(smi.amdsmi_get_gpu_driver_info(handle)["driver_version"]),
        "cuda": f"ROCm {torch.version.hip}",
        "max_sm_mhz": properties.clock_rate // 1000,
        "max_memory_mhz": properties.memory_clock_rate // 1000,
        "power_limit_w": smi.amdsmi_get_power_cap_info(handle)["power_cap"] / 1e6,
    }
