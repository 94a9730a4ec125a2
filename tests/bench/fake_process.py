"""What stands in a process of `bench.many` where its GPU would: the lock, the engine and the process are real.

The folder KPERF_FAKE_SWEEP says what is to happen, and gets what did: `log` has a line for the beginning and the end of
every workload. A file there is taken away by the first to whom it happens, but for those in `ALWAYS`.
"""

import os
import signal
import time
from pathlib import Path
from types import SimpleNamespace

import torch

from kperf.bench import sweep
from kperf.errors import MeasurementError
from kperf.record import device
from tests.conftest import environment, point

ALWAYS = ("crash", "slow", "no-return", "driver")
SECONDS = 0.05


def folder():
    return Path(os.environ["KPERF_FAKE_SWEEP"])


def uuid():
    return os.environ["CUDA_VISIBLE_DEVICES"].removeprefix("GPU-")


def happens(what, whom):
    """Whether a file says so: `kill-640` kills whoever measures that length, `slow-card1` slows that GPU."""
    file = folder() / f"{what}-{whom}"
    if what not in ALWAYS:
        try:
            file.unlink()
        except FileNotFoundError:
            return False
        return True
    return file.exists()


def note(what, workload):
    with (folder() / "log").open("a") as log:
        log.write(f"{what} {workload.seq_len} {workload.inputs} {uuid()} {os.getpid()}\n")


def measure(workloads, implementations, *, sweep, environment, figure, rounds, on_step):
    run = os.urandom(4).hex()
    points = []
    for workload in workloads:
        note("begin", workload)
        on_step("round 1 of 10")
        time.sleep(SECONDS)
        if happens("lost", workload.seq_len):
            raise MeasurementError(f"fa3 on {workload} broke the GPU's context: AcceleratorError")
        if happens("crash", workload.seq_len):
            os.kill(os.getpid(), signal.SIGSEGV)
        if happens("kill", workload.seq_len) or happens("kill", uuid()):
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(280 if happens("slow", uuid()) else 0)
        note("end", workload)
        for n, item in enumerate(implementations):
            override = None if item.unsupported(workload) else item.override(workload)
            common = {"environment": environment, "override_sha256": override and override.sha256}
            points.append(point(item.key, workload.flops / 6e11 * (1 + n), run, workload, sweep, **common))
    return points


def measured_in():
    if happens("no-return", uuid()):
        raise RuntimeError("No CUDA GPUs are available")
    return environment(gpu_uuid=uuid(), driver="999.9" if happens("driver", uuid()) else "580.1")


def dask_setup(worker):
    """By the engine's convention called in a new process, before anything of ours."""
    device.LOCKS = folder()
    device.environment = measured_in
    torch.cuda.get_device_properties = lambda: SimpleNamespace(uuid=uuid())
    sweep.measure = measure
