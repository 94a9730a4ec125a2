"""What a script launches, compiled on a machine without a GPU: nothing runs, launches are noted."""

import contextlib
import io
import itertools
import runpy
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from kperf.arch import H200, Arch
from kperf.compat.triton import CompiledKernel, GPUTarget
from kperf.compat.triton.drivers import driver_in_place
from kperf.compat.triton.launches import LaunchCall, intercepted_launches
from kperf.compat.triton.tuning import own_tuning


def properties(arch: Arch = H200.arch) -> SimpleNamespace:
    """What torch says of a GPU of an architecture; its name, SMs, memory and L2 are an H200's."""
    major, minor = arch.device_capability
    is_amd = arch.backend == "hip"
    return SimpleNamespace(
        name=H200.name,
        major=major,
        minor=minor,
        multi_processor_count=H200.sms,
        regs_per_multiprocessor=arch.sm_registers,
        max_threads_per_multi_processor=arch.sm_warps * arch.warp_size,
        max_threads_per_block=arch.cta_warps * arch.warp_size,
        warp_size=arch.warp_size,
        total_memory=H200.memory_bytes,
        shared_memory_per_block=arch.cta_shared_bytes if is_amd else 49_152,
        shared_memory_per_block_optin=arch.cta_shared_bytes,
        L2_cache_size=H200.l2_bytes,
        gcnArchName=arch.name if is_amd else "",
    )


@dataclass(frozen=True)
class Launch:
    """A kernel as compiled, and the grid of its first launch."""

    kernel: CompiledKernel
    grid: tuple[int, int, int]

    @property
    def name(self) -> str:
        """The kernel's."""
        return str(self.kernel.name)


class Utils:
    """What Triton asks a device: that of an architecture, with as many SMs as an H200."""

    def __init__(self, arch: Arch) -> None:
        """Nothing is asked of a driver."""
        self.arch = arch

    def get_device_properties(self, _device: int) -> dict[str, int | str]:
        """As the launchers of Triton read them."""
        return {
            "max_shared_mem": self.arch.cta_shared_bytes,
            "multiprocessor_count": H200.sms,
            "warpSize": self.arch.warp_size,
            "max_num_regs": self.arch.sm_registers,
            "arch": self.arch.name,
        }

    def load_binary(self, name: str, binary: bytes, _shared: int, _device: int) -> tuple[None, int, int, int, int]:
        """Module, function, registers, spills, most threads a block: nothing is loaded.

        A module that is none is not unloaded either, which Triton (from 3.9 on) does when the driver may be gone.
        """
        return None, hash((name, binary)) & 0xFFFF, 64, 0, 1024


class Launcher:
    """Launches nothing."""

    def __init__(self, source: Any, metadata: Any) -> None:
        """Keep what tells the kernel."""
        self.source, self.metadata = source, metadata

    def __call__(self, *arguments: Any) -> None:
        """A launch."""


class Driver:
    """A driver without a GPU, whose tensors are on the CPU."""

    launcher_cls: type = Launcher

    def __init__(self, arch: Arch = H200.arch, device: int = 0) -> None:
        """Kernels are compiled for `arch`; the JIT keeps them by the number of the `device`."""
        self.arch = arch
        self.device = device
        self.utils = Utils(arch)

    def get_current_target(self) -> GPUTarget:
        """What is compiled for."""
        return self.arch.target

    def get_current_device(self) -> int:
        """The only one."""
        return self.device

    def get_current_stream(self, _device: int | None = None) -> int:
        """A number like another."""
        return 7

    def get_active_torch_device(self) -> torch.device:
        """Where tensors are."""
        return torch.device("cpu")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """All configurations of an autotuner are as fast as each other."""

        def benchmark(call: Callable[[], object], **_: object) -> list[float]:
            call()
            return [1.0, 1.0, 1.0]

        return benchmark


_own_devices = itertools.count(-1, -1)
"""A number for each time that launches are noted: what is compiled then is no GPU's, nor another target's."""


@contextmanager
def noted_launches(arch: Arch = H200.arch) -> Iterator[list[Launch]]:
    """Within it kernels compile for `arch`; the list has each that was launched, once.

    Afterwards a GPU's launches are compiled and tuned as if nothing had been: the list alone has what was compiled.
    """
    by_hash: dict[str, Launch] = {}

    def note(kernel: CompiledKernel) -> Callable[[LaunchCall], None]:
        def noted(call: LaunchCall) -> None:
            by_hash.setdefault(kernel.hash, Launch(kernel, call.grid))
            call()

        return noted

    launches: list[Launch] = []
    try:
        with driver_in_place(Driver(arch, next(_own_devices))), own_tuning(), intercepted_launches(note):
            yield launches
    finally:
        launches += by_hash.values()


def launched_by(script: Path, arguments: Sequence[str], arch: Arch = H200.arch) -> list[Launch]:
    """Run a script up to where it finds that nothing was computed (an assertion), and see what it launched on `arch`.

    What it prints is dropped, as its numbers mean nothing.
    """
    argv, sys.argv = sys.argv, [str(script), *arguments]
    try:
        quiet = contextlib.redirect_stdout(io.StringIO())
        with noted_launches(arch) as launches, quiet, contextlib.suppress(AssertionError):
            runpy.run_path(str(script), run_name="__main__")
    finally:
        sys.argv = argv
    return launches
