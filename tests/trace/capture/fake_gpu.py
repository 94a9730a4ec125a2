"""A GPU that is not there: kernels compile for sm_90a, a launch is noted, and an instrumented kernel's records are made
up.

Run as a program it is `kperf` on such a GPU: `python -m tests.trace.capture.fake_gpu trace script.py`.
"""

import ctypes
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
import triton
from triton import knobs
from triton.runtime import _allocation, driver

from kperf.compat import cupti
from kperf.compat.triton.cache import own_cache
from kperf.ir import offline, override
from kperf.record import bandwidth, device
from kperf.record.bandwidth import Bandwidth
from kperf.trace import results
from kperf.trace.capture import instrumented, multipass
from kperf.trace.capture import sampled as sampling
from kperf.trace.capture.gpu import Gpu
from kperf.trace.instrument.program import Program, read_program
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import Recording
from tests.conftest import environment
from tests.trace.analyze.synthetic import encode, probes_of

ITERATIONS = 6
STEP = 200
"""Cycles from record to record."""
SAMPLED_STEP = 200
"""The same where sampled CTAs are recorded."""

PROOFS = Path(knobs.cache.dir)
"""The cache of all tests: that a proof compiles apart, `tests/attention/test_overrides.py` holds."""
INSTRUMENTED = PROOFS.with_name("instrumented")
"""A cache of their own as on a GPU, but one that all tests share: a kernel lies in it under the hash of its text."""

LAUNCHES: list[SimpleNamespace] = []

WRITES: list[Callable[[bool, tuple], None]] = []
"""What a launch writes: each is called with whether it is an instrumented kernel's, and the arguments."""


class Launcher(offline.Launcher):
    def __call__(self, gx, gy, gz, stream, function, packed, launch_metadata, enter, exit, *arguments):
        size, grid = self.metadata.profile_scratch_size, (gx, gy, gz)
        if size:
            buffer = _allocation._profile_allocator.get()(gx * gy * gz * size, 128, stream)
            write_records(buffer, self.metadata, gx * gy * gz)
        for write in WRITES:
            write(bool(size), arguments)
        sampled = bool(size) and "sampled" in self.metadata.instrumentation_mode
        LAUNCHES.append(
            SimpleNamespace(name=self.source.name, grid=grid, traced=bool(size), sampled=sampled, arguments=arguments)
        )
        for hook in (enter, exit):
            if hook is not None:
                hook(launch_metadata)


@cache
def instrumented_of(path: str, mode: str) -> tuple[Program, Recording, Sample | None]:
    _, warps, size, memory, bits, *key = mode.split(":")
    sample = Sample(*map(int, key[0].split(".")[1:3])) if key and key[0].startswith("sampled") else None
    with open(path) as file:  # noqa: PTH123
        program = read_program(file.read())
    recorded = tuple(map(int, warps.split(".")))
    return program, Recording(recorded, program.total_warps, int(size), memory, int(bits)), sample


def write_records(buffer: torch.Tensor, metadata, ctas: int) -> None:
    program, recording, sample = instrumented_of(metadata.ir_override, metadata.instrumentation_mode)
    groups = {group.first_warp: program.code(group.name) for group in program.groups}
    looping = any(scope.loops for scope in program.scopes)
    probes = [
        probes_of(program, groups[warp], ITERATIONS) if looping else straight(program, groups[warp])
        for warp in recording.warps
    ]
    step = SAMPLED_STEP if sample else STEP
    cta = [[(*probe, step * place) for place, probe in enumerate(warp)] for warp in probes]
    encoded = encode([cta] * (sample.count(ctas) if sample else ctas), recording, sample=sample)
    assert encoded.nbytes == buffer.nbytes
    ctypes.memmove(buffer.data_ptr(), encoded.ctypes.data, encoded.nbytes)


def straight(program: Program, group: str):
    lifetime, *inner = [scope for scope in program.scopes if scope.group == group]
    return [(lifetime.number, True), *((scope.number, start) for scope in inner for start in (True, False)),
            (lifetime.number, False)]  # fmt: skip


class Driver(offline.Driver):
    launcher_cls = Launcher


class FakeGpu(Gpu):
    """Each mark is a millisecond after the last."""

    def __init__(self):
        self._clock = count()

    def device(self):
        return 0

    def at(self, device):
        return nullcontext()

    def stream(self):
        return 7

    def is_over(self, mark):
        return True

    def capturing(self):
        return False

    def mark(self, stream):
        assert stream == 7
        return next(self._clock)

    def spin(self, stream):
        pass

    def milliseconds(self, start, end):
        return float(end - start)

    def on(self, stream):
        return nullcontext()

    def free_bytes(self):
        return 1 << 40

    def buffer(self, size):
        return torch.zeros(size, dtype=torch.uint8)

    def to_host(self, buffer):
        return buffer.numpy().astype(np.uint8)


def install(locks: Path, monkeypatch=None):
    """Triton launches on this GPU from now on, and `device` says that it is a Hopper; its lock lies in `locks`."""
    fake = Driver()
    setattribute = setattr if monkeypatch is None else monkeypatch.setattr

    def without_cupti(_name: str, missing: str):
        raise cupti.RefusedError(missing)

    if cupti._library.__module__ == cupti.__name__:  # no other fake
        setattribute(cupti, "_library", without_cupti)

    def shared(folder: Path):
        return lambda _: own_cache(folder)

    for owner, name, value in (
        (driver, "_active", fake),
        (driver, "_default", fake),
        (device, "why_static", lambda: None),
        (device, "environment", environment),
        (device, "LOCKS", locks),
        (torch.cuda, "get_device_properties", lambda: SimpleNamespace(uuid="fake")),
        (multipass, "own_cache", shared(INSTRUMENTED)),
        (instrumented, "own_cache", shared(INSTRUMENTED)),
        (sampling, "own_cache", shared(INSTRUMENTED)),
        (results, "own_cache", shared(INSTRUMENTED)),
        (override, "own_cache", shared(PROOFS)),
        (bandwidth, "measure", lambda: Bandwidth(peak_gb_per_s=4917, copy_gb_per_s=4200)),
    ):
        setattribute(owner, name, value)


if __name__ == "__main__":
    from kperf import cli
    from kperf.trace import command

    with tempfile.TemporaryDirectory() as folder:
        install(Path(folder))
        command.Gpu = FakeGpu
        assert triton.runtime.driver.active.get_current_device() == 0
        cli.main()
