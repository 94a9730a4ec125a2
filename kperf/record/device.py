"""The GPU of this machine: whether it can be measured, what it is, and its state while it works (through NVML)."""

import functools
import importlib.metadata
import os
import platform
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml
import torch
import triton

from kperf.record import machine as doctor
from kperf.record.commit import git_commit
from kperf.record.store import DeviceState, Environment

_THROTTLE_REASONS = {
    "SW_POWER_CAP": 0x4,
    "HW_SLOWDOWN": 0x8,
    "SYNC_BOOST": 0x10,
    "SW_THERMAL_SLOWDOWN": 0x20,
    "HW_THERMAL_SLOWDOWN": 0x40,
    "HW_POWER_BRAKE_SLOWDOWN": 0x80,
}
"""Bits of nvmlDeviceGetCurrentClocksThrottleReasons that hold the SM clock down (NVML's nvml.h)."""


@functools.cache
def why_static() -> str | None:
    """None if the kernels can be measured on this machine, else one sentence that says why not."""
    return doctor.why_not_measured(doctor.probe())


def gpu_name() -> str:
    """Name of the current GPU, as CUDA gives it."""
    return str(torch.cuda.get_device_name())


@functools.cache
def sm_count() -> int:
    """Multiprocessors of the current GPU."""
    return int(torch.cuda.get_device_properties().multi_processor_count)


def device_state() -> DeviceState:
    """SM clock, power, temperature and throttle reasons now. Takes about a millisecond: ask while the GPU works."""
    handle = nvml_handle()
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return DeviceState(
        sm_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        power_w=pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        temperature_c=pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        throttle=[name for name, bit in _THROTTLE_REASONS.items() if reasons & bit],
    )


def environment() -> Environment:
    """What every recorded number is tied to."""
    handle = nvml_handle()
    capability = torch.cuda.get_device_capability()
    return Environment(
        gpu=gpu_name(),
        gpu_uuid=str(torch.cuda.get_device_properties().uuid),
        compute_capability=f"{capability[0]}.{capability[1]}",
        driver=pynvml.nvmlSystemGetDriverVersion(),
        cuda=str(torch.version.cuda),
        max_sm_mhz=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        max_memory_mhz=pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        power_limit_w=pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3,
        torch=torch.__version__,
        triton=triton.__version__,
        cudnn=str(torch.backends.cudnn.version()),
        fa3_fwd=_version("fa3-fwd"),
        flash_attn=_version("flash-attn"),
        python=platform.python_version(),
        platform=platform.platform(),
        image=os.environ.get("KPERF_IMAGE_ID"),
        git_commit=git_commit(),
        command_line=" ".join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        recorded_at=now(),
    )


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _version(distribution: str) -> str | None:
    try:
        return str(importlib.metadata.version(distribution))
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def nvml_handle() -> Any:
    """NVML's handle of the current GPU."""
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties().uuid}")
