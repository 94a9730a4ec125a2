"""Shared makers of records, and one cache of compiled kernels."""

import gc
import io
import os
import signal
import socket
import statistics
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest

from kperf.attention.workload import Workload
from kperf.bench.points import MAX_REL_ERROR, FailedPoint, MeasuredPoint, Settling
from kperf.console import WholeConsole
from kperf.record import device
from kperf.record.store import DeviceState, DeviceStates, Environment
from tests import forks

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # under nohup; what tests start would inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

STATE = DeviceState(
    sm_mhz=1500, power_w=690.0, temperature_c=60, throttle=["SW_POWER_CAP"], at_s=1.8e9, power_at_s=1.8e9 - 0.05
)


COMMON = {"run": "r", "environment": "e", "recorded_at": "2026-01-02T03:04:05+00:00"}
"""Of any row of a study."""


@pytest.fixture(autouse=True)
def main_module():
    """A script that was run here is `__main__`, until the next test begins: processes that it starts begin with it."""
    main = sys.modules["__main__"]
    yield
    sys.modules["__main__"] = main


@pytest.fixture(scope="session")
def in_a_fork(tmp_path_factory):
    """What stands for `python` in a command `python -m MODULE`: the module begins with torch, Triton and kperf there.

    The server is no fork of this process, in which tests have run threads: what these hold would be held for ever.
    """
    path = tmp_path_factory.mktemp("forks") / "socket"
    root = str(Path(__file__).resolve().parents[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(str(path))
        listening.listen()
        code = f"import sys; sys.path[0] = {root!r}; from tests import forks; forks.serve({listening.fileno()})"
        server = subprocess.Popen([sys.executable, "-c", code], pass_fds=[listening.fileno()], cwd=root)
    yield sys.executable, "-IS", forks.__file__, str(path)
    server.kill()
    server.wait()


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setattr(device, "why_static", lambda: "there is no GPU")


@pytest.fixture
def h200(monkeypatch):
    """A study measures, as if this machine had an H200."""
    monkeypatch.setattr(device, "why_static", lambda: None)
    monkeypatch.setattr(device, "gpu_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(device, "environment", environment)
    monkeypatch.setattr(device, "exclusive", nullcontext)


@pytest.fixture
def console():
    """What is printed, for `export_text`; no table is too wide."""
    return WholeConsole(record=True, width=400, file=io.StringIO())


@pytest.fixture
def unrendered(request, monkeypatch):
    """Figures are made, and neither laid out nor drawn into files, which takes a second each, but where a test is
    marked `rendered`."""
    if request.node.get_closest_marker("rendered") is None:
        monkeypatch.setattr("kperf.plots.style.content", lambda *_, **__: b"not rendered")


def pytest_configure(config):
    """Workers have a core each; they, the commands that tests start and the next run share Triton's cache.

    Its keys are made of the kernel's source, the compiler and the options, among them the path of an override, which
    holds the hash of its content: what a test finds there is what it would have compiled. Without pytest's own cache
    (`-p no:cacheprovider`, on a read-only root) it is Triton's default.
    """
    from hypothesis import HealthCheck, settings

    # How long an example takes says how busy the machine is. What fixtures make is written anew by each example.
    slow = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
    settings.register_profile("any machine", deadline=None, suppress_health_check=slow, derandomize=True)
    settings.register_profile("explore", settings.get_profile("any machine"), derandomize=False)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "any machine"))
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"):  # what a test makes has not the settings of `make test`
        os.environ.pop(name, None)
    if config.getoption("numprocesses", None):  # threads of OpenMP that wait for a core spin on the others'
        os.environ.setdefault("OMP_NUM_THREADS", "1")
    if "TRITON_CACHE_DIR" not in os.environ and config.pluginmanager.has_plugin("cacheprovider"):
        os.environ["TRITON_CACHE_DIR"] = str(config.cache.mkdir("triton"))


def pytest_collection_finish():
    gc.set_threshold(100_000, 20, 20)


@pytest.fixture(autouse=True, scope="module")
def kept_to_the_end():
    """What is imported and read by now stays to the end: to look through it, for garbage every few thousand objects
    and for executors before each script (`Script.run`), took a fifth of the time."""
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: item.get_closest_marker("long") is None)


def point(implementation="improved", milliseconds=1.0, run="r1", workload=None, sweep="seq_len", **changes):
    """A point; `changes` are of its fields."""
    workload = workload or Workload(batch=16, seq_len=1024)
    samples = changes.get("samples_ms", [milliseconds * factor for factor in (0.99, 1.0, 1.01)] * 4)
    fields = {
        "figure": "fig12",
        "run": run,
        "sweep": sweep,
        "implementation": implementation,
        **workload.model_dump(),
        "override_sha256": None,
        "environment": "e1",
        "recorded_at": "2026-01-02T03:04:05+00:00",
        "rel_error": MAX_REL_ERROR[workload.dtype] / 2,
        "lse_error": 1e-6,
        "samples_ms": samples,
        "calls_per_sample": 1,
        "eager_ms": 2 * statistics.median(samples),
        "ceiling_tflops": 700.0,
        "timer": "cuda_graph_events",
        "round_order": [0] * len(samples),
        "device_states": DeviceStates.of([STATE] * len(samples)),
        "settling": Settling(seconds=1.0, shift=0.002, settled=True),
        "other_processes": 0,
    }
    return MeasuredPoint(**(fields | changes))


def failed(implementation="improved", status="oom", run="r1", workload=None, sweep="seq_len", message="too large"):
    workload = workload or Workload(batch=16, seq_len=1024)
    return FailedPoint(
        figure="fig12",
        run=run,
        sweep=sweep,
        implementation=implementation,
        **workload.model_dump(),
        override_sha256=None,
        environment="e1",
        recorded_at="2026-01-02T03:04:05+00:00",
        status=status,
        message=message,
    )


def environment(**changes):
    fields = {
        "gpu": "NVIDIA H200",
        "gpu_uuid": "u",
        "compute_capability": "9.0",
        "driver": "580.1",
        "cuda": "13.0",
        "max_sm_mhz": 1980,
        "max_memory_mhz": 3201,
        "power_limit_w": 700.0,
        "torch": "2.11.0",
        "triton": "3.6.0",
        "cudnn": "91900",
        "fa3_fwd": "0.0.3",
        "flash_attn": None,
        "python": "3.12.3",
        "platform": "Linux",
        "image": None,
        "git_commit": "abc",
        "command_line": "kperf fig12",
        "recorded_at": "2026-01-02T03:04:05+00:00",
    }
    return Environment(**(fields | changes))


def kept(store, rows):
    """A store with these rows, of the environment `environment()`."""
    with store.writer() as writer:
        known = writer.record_environment(environment())
        writer.append([row.model_copy(update={"environment": known}) for row in rows])
    return store
