"""Launches: intercepted, repeated, direct."""

import copy
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from triton import knobs
from triton.backends import backends
from triton.compiler import CompiledKernel
from triton.runtime import driver
from triton.runtime._allocation import _profile_allocator, set_profile_allocator
from triton.runtime.errors import OutOfResources
from triton.runtime.jit import JITFunction

from kperf.compat.triton import VERSION

Launch = Callable[..., None]
"""What `CompiledKernel.run` gives: called with the grid, the stream, the function, metadata, hooks and arguments."""


@dataclass(frozen=True)
class LaunchCall:
    """A launch as it reaches `CompiledKernel.run`; `rest`: packed metadata, launch metadata, two hooks, arguments."""

    launch: Launch
    grid: tuple[int, int, int]
    stream: int
    function: int
    rest: tuple[Any, ...]

    def __call__(self) -> None:
        """Launch what was to be launched."""
        self.launch(*self.grid, self.stream, self.function, *self.rest)

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The kernel's, in order."""
        return self.rest[4:]

    def of(self, kernel: CompiledKernel, launch: Launch) -> "LaunchCall":
        """The same grid, stream, hooks and arguments for another kernel, which `launch` launches and has loaded."""
        rest = (kernel.packed_metadata, *self.rest[1:])
        return LaunchCall(launch, self.grid, self.stream, kernel.function, rest)

    def elsewhere(self, grid: tuple[int, int, int], arguments: Sequence[Any]) -> "LaunchCall":
        """The same launch with another grid and other arguments."""
        return replace(self, grid=grid, rest=(*self.rest[:4], *arguments))

    def again(self, stream: int) -> "LaunchCall":
        """The same launch on another stream, without the hooks of a profiler."""
        return replace(self, stream=stream, rest=(self.rest[0], None, None, None, *self.arguments))


_load = CompiledKernel._init_handles


def own_launch(kernel: CompiledKernel) -> Launch:
    """Load a kernel and give its launch, which nobody intercepts. Raises `OutOfResources` if the GPU has too little."""
    _load(kernel)  # not among `refused_kernels`
    launch: Launch = kernel._run
    return launch


def loaded_again(kernel: CompiledKernel) -> tuple[CompiledKernel, Launch]:
    """The same kernel and its own launch, its machine code loaded once more: a profiler may not know what was before.

    Triton unloads no kernel: the copy stays on the GPU too.
    """
    copied = copy.copy(kernel)
    copied.module = copied.function = copied._run = None
    return copied, own_launch(copied)


class DirectLaunch:
    """`kernel[grid]` without what Triton does in Python at each launch: 2 us in place of 12.

    The kernel's first arguments may be TMA descriptors, which the caller keeps encoded. Launches that somebody watches,
    and those of other Tritons and drivers, are not direct: `usable` says which.
    """

    def __init__(self, kernel: CompiledKernel, launch: Launch) -> None:
        """`direct_launch` makes it; launch: the kernel's own."""
        around: Any = launch
        self._launcher, self._boxes = around.launch, ()
        if kernel.metadata.tensordesc_meta:
            held = inspect.getclosurevars(around.launch).nonlocals
            self._launcher, self._boxes = held["launcher"], held["tensordesc_meta"]
        self._encode = sys.modules[type(launch).__module__].make_tensordesc_arg
        options = (around.launch_cooperative_grid, around.launch_pdl)
        self._head = (kernel.function, *options, None, None, kernel.packed_metadata, None, None, None)
        self._stream = driver.active.get_current_stream

    def encoded(self, place: int, descriptor: Any) -> tuple[Any, ...]:
        """A host's descriptor as the kernel's descriptor number `place`: of memory that may come and go."""
        return tuple(self._encode(descriptor, self._boxes[place]))

    def __call__(self, device: int, grid: tuple[int, int, int], *arguments: Any) -> None:
        """Launch on the current stream of a device, the current one; arguments: with descriptors as `encoded`, flat."""
        self._launcher(*grid, self._stream(device), *self._head, *arguments)

    @staticmethod
    def usable() -> bool:
        """Whether nobody watches launches now: a profiler's hooks, or who put himself in place of them."""
        enter, leave = knobs.runtime.launch_enter_hook, knobs.runtime.launch_exit_hook
        hooked = getattr(enter, "calls", enter) or getattr(leave, "calls", leave)
        return not hooked and CompiledKernel.__dict__["run"] is _run


_run = CompiledKernel.__dict__["run"]


def direct_launch(kernel: CompiledKernel) -> DirectLaunch | None:
    """The direct launch of a kernel on CUDA with Triton 3.6; None of others. Loads it."""
    launch: Any = own_launch(kernel)
    known = VERSION.startswith("3.6.") and type(launch).__module__ == backends["nvidia"].driver.__module__
    if not known or launch.global_scratch_size or launch.profile_scratch_size:
        return None
    return DirectLaunch(kernel, launch)


@contextmanager
def intercepted_launches(
    intercept: Callable[[CompiledKernel], Callable[[LaunchCall], None]],
) -> Iterator[Callable[[CompiledKernel], Launch]]:
    """Within it, what `intercept` gives for a kernel is called in the place of its launches, all of this process.

    They go through the property `CompiledKernel.run`, and `intercept` is asked whenever it is read: the JIT does at
    each launch, `kernel[grid]` too, Inductor once. Yields what gives a kernel's own launch; it loads the kernel.
    """
    original = CompiledKernel.__dict__["run"]

    def run(kernel: CompiledKernel) -> Launch:
        launch, instead = original.fget(kernel), intercept(kernel)

        def intercepted(gx: int, gy: int, gz: int, stream: int, function: int, *rest: Any) -> None:
            instead(LaunchCall(launch, (gx, gy, gz), stream, function, rest))

        return intercepted

    CompiledKernel.run = property(run)
    try:
        yield original.fget
    finally:
        CompiledKernel.run = original


@contextmanager
def compilations_within(lock: AbstractContextManager[Any]) -> Iterator[None]:
    """Within it, whatever the JIT compiles, in any thread, is compiled while `lock` is held."""
    original = JITFunction._do_compile

    def compile_within(*arguments: Any, **options: Any) -> Any:
        with lock:
            return original(*arguments, **options)

    JITFunction._do_compile = compile_within
    try:
        yield
    finally:
        JITFunction._do_compile = original


@contextmanager
def refused_kernels() -> Iterator[list[CompiledKernel]]:
    """Within it, the list gets each kernel that the JIT does not launch because it needs more than the GPU has."""
    original = CompiledKernel._init_handles
    refused: list[CompiledKernel] = []

    def load(kernel: CompiledKernel) -> None:
        try:
            original(kernel)
        except OutOfResources:
            refused.append(kernel)
            raise

    CompiledKernel._init_handles = load
    try:
        yield refused
    finally:
        CompiledKernel._init_handles = original


@contextmanager
def profile_buffer(allocate: Callable[[int, int, int | None], torch.Tensor]) -> Iterator[None]:
    """Within it, instrumented kernels ask `allocate(bytes, alignment, stream)` for their profile buffer."""
    before = _profile_allocator.get()
    set_profile_allocator(allocate)
    try:
        yield
    finally:
        set_profile_allocator(before)
