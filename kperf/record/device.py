"""The GPU of this machine: whether it can be measured, what it is, and its state while it works (through NVML)."""

import fcntl
import functools
import os
import platform
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pynvml
import torch
import triton

from kperf.console import complain
from kperf.errors import UsageError
from kperf.record import machine, rocm
from kperf.record.commit import git_commit
from kperf.record.store import DeviceState, Environment

LOCKS = Path("/tmp")
"""Where all users of a machine meet. A container has its own: what others run is in the records (`other_processes`)."""

_HELD = Path("/proc/locks")
"""Every lock and its holder (proc_locks(5))."""

_ours: set[str] = set()
"""UUIDs of the GPUs whose lock this process holds."""

_shared: list[int] = []
"""The lock that this process takes in turn with others: its descriptor, while it is in such a turn."""

_waited_s: list[float] = []
"""How long this process waited for the GPU, each time."""

_power_read: list[tuple[int, float]] = []
"""The last reading of the power (milliwatts) and when it was first seen."""

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
    return machine.why_not_measured(machine.probe())


def why_not_timed() -> str | None:
    """None if plain Triton kernels can be timed on this machine, on a Hopper GPU or an MI300X; else a sentence."""
    return rocm.why_not_measured() if torch.version.hip else why_static()


def gpu_name() -> str:
    """Name of the current GPU, as CUDA gives it."""
    return str(torch.cuda.get_device_name())


def sm_count() -> int:
    """SMs of the current GPU."""
    return int(torch.cuda.get_device_properties().multi_processor_count)


def device_state() -> DeviceState:
    """SM clock, power, temperature and throttle reasons now. Takes about a millisecond: ask while the GPU works.

    The power is the instantaneous one, which the driver reads anew some ten times a second (on an H200 with driver
    580; the time that NVML gives along is that of the question).
    """
    if torch.version.hip:
        return rocm.device_state()
    handle = nvml_handle()
    (power,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_POWER_INSTANT])
    at_s = time.time()
    if not _power_read or _power_read[-1][0] != power.value.uiVal:
        _power_read[:] = [(power.value.uiVal, at_s)]
    reasons = pynvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return DeviceState(
        sm_mhz=pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM),
        power_w=power.value.uiVal / 1e3,
        temperature_c=pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU),
        throttle=[name for name, bit in _THROTTLE_REASONS.items() if reasons & bit],
        at_s=at_s,
        power_at_s=_power_read[-1][1],
    )


def energy_j() -> float:
    """Joules that the GPU has used since its driver was loaded; the driver counts on some ten times a second."""
    return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(nvml_handle())) / 1e3


def other_processes() -> int:
    """Compute processes on the GPU beside this one, which is one of them from its first kernel on.

    Told apart by number and not by process id: NVML gives the ids of the host, whatever a container calls them.
    """
    if torch.version.hip:
        return rocm.other_processes()
    return max(0, len(pynvml.nvmlDeviceGetComputeRunningProcesses(nvml_handle())) - 1)


@contextmanager
def exclusive() -> Iterator[None]:
    """Measure alone: a lock a GPU, which all users of the machine share and a killed process gives back.

    What measures within it, in the same process, may ask again. Raises `UsageError` while another process of this
    program measures on the same GPU.
    """
    uuid = str(torch.cuda.get_device_properties().uuid)
    if uuid in _ours:
        yield
        return
    with locked(_lock_of(uuid), _measures_on(uuid)):
        _ours.add(uuid)
        try:
            yield
        finally:
            _ours.remove(uuid)


@contextmanager
def in_turn() -> Iterator[None]:
    """Measure alone as `exclusive`, but wait for others that measure, and let them while this one is `Compiling`.

    If it has to wait at first, it prints for whom.
    """
    uuid = str(torch.cuda.get_device_properties().uuid)
    if uuid in _ours:
        yield
        return
    with _opened(_lock_of(uuid)) as descriptor:
        if not _is_free(descriptor):
            complain(f"{_holder(os.fstat(descriptor))} {_measures_on(uuid)}")
            _take_turn(descriptor)
        _shared.append(descriptor)
        _ours.add(uuid)
        try:
            yield
        finally:
            _ours.remove(uuid)
            _shared.remove(descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_UN)  # to close it is not enough: a process that was forked has it too


def _lock_of(uuid: str) -> Path:
    return LOCKS / f"kperf-gpu-{uuid}.lock"


def _measures_on(uuid: str) -> str:
    """What a process does that holds a GPU's lock."""
    return f"is measuring on GPU {uuid}: wait for it to end"


def own_seconds() -> float:
    """A monotonic clock that stands while this process waits for others that measure `in_turn`."""
    return time.monotonic() - sum(_waited_s)


def _take_turn(descriptor: int) -> None:
    begin = time.monotonic()
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _waited_s.append(time.monotonic() - begin)


class Compiling:
    """A re-entrant lock among threads that compile. Meanwhile another process may have the GPU, of those `in_turn`."""

    def __init__(self) -> None:
        """No thread compiles."""
        self._lock = threading.RLock()
        self._depth = 0

    def __enter__(self) -> None:
        """Wait for other threads; what was launched is over before another process has the GPU."""
        self._lock.acquire()
        try:
            if self._depth == 0 and _shared:
                if torch.cuda.is_initialized():
                    torch.cuda.synchronize()
                fcntl.flock(_shared[0], fcntl.LOCK_UN)
        except BaseException:  # of a launch that failed, or Ctrl-C: other threads go on
            self._lock.release()
            raise
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        """Wait for the GPU, and let other threads compile."""
        try:
            if self._depth == 1 and _shared:
                _take_turn(_shared[0])
        finally:
            self._depth -= 1
            self._lock.release()


@contextmanager
def locked(path: Path, does: str) -> Iterator[None]:
    """Hold `path` by flock; made if need be, and readable by all, as to read is enough to lock.

    Raises `UsageError` if it cannot be made, and while another process holds it: a sentence of who that is and what it
    `does`.
    """
    with _opened(path) as descriptor:
        if not _is_free(descriptor):
            raise UsageError(f"{_holder(os.fstat(descriptor))} {does}")
        yield


def _is_free(descriptor: int) -> bool:
    """Whether nobody else held the lock, which is ours then."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The descriptor of a lock's file."""
    try:
        try:  # whose file it is does not matter; a sticky folder lets nobody else open it for making it
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CREAT, 0o644)
    except OSError as error:
        raise UsageError(f"{path}, the GPU's lock, cannot be opened ({error.strerror}): remove it") from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _holder(file: os.stat_result) -> str:
    """The process that holds the flock of a file; nameless if it is of another container."""
    inode = f"{os.major(file.st_dev):02x}:{os.minor(file.st_dev):02x}:{file.st_ino}"
    try:
        for line in _HELD.read_text().splitlines():
            match line.split():
                case [_, "FLOCK", _, _, process, where, *_] if where == inode:
                    words = Path("/proc", process, "cmdline").read_text().split("\0")
                    return f"process {process} ({shlex.join([Path(words[0]).name, *words[1:-1]])[:80]})"
    except OSError:
        pass
    return "another process"


def environment() -> Environment:
    """What every recorded number is tied to."""
    return Environment(
        gpu=gpu_name(),
        gpu_uuid=str(torch.cuda.get_device_properties().uuid),
        **(rocm.environment() if torch.version.hip else _by_nvml()),
        torch=torch.__version__,
        triton=triton.__version__,
        cudnn=_cudnn(),
        fa3_fwd=machine.version("fa3-fwd"),
        flash_attn=machine.version("flash-attn"),
        python=platform.python_version(),
        platform=platform.platform(),
        image=os.environ.get("KPERF_IMAGE_ID"),
        git_commit=git_commit(),
        command_line=command_line(),
        recorded_at=now(),
    )


def command_line() -> str:
    """How this process was called, paths as from its folder: where that lies on a machine is nobody's business."""
    here = f"{Path.cwd()}{os.sep}"
    return " ".join([Path(sys.argv[0]).name, *(argument.replace(here, "") for argument in sys.argv[1:])])


def _cudnn() -> str:
    """Its version, or why torch refuses the one that was loaded: most kernels need none."""
    try:
        return str(torch.backends.cudnn.version())
    except RuntimeError as error:
        return f"refused: {str(error).partition('. ')[0]}"


def _by_nvml() -> dict[str, Any]:
    """What an environment says of the GPU and its driver."""
    handle = nvml_handle()
    capability = torch.cuda.get_device_capability()
    return {
        "compute_capability": f"{capability[0]}.{capability[1]}",
        "driver": pynvml.nvmlSystemGetDriverVersion(),
        "cuda": str(torch.version.cuda),
        "max_sm_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM),
        "max_memory_mhz": pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_MEM),
        "power_limit_w": pynvml.nvmlDeviceGetPowerManagementLimit(handle) / 1e3,
    }


def now() -> str:
    """UTC time to the second, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def nvml_handle() -> Any:
    """NVML's handle of the current GPU."""
    return _nvml_handle(str(torch.cuda.get_device_properties().uuid))


@functools.cache
def _nvml_handle(uuid: str) -> Any:
    pynvml.nvmlInit()
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")
