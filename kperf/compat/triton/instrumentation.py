"""Passes that lower events, and changes of a kernel's PTX."""

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from triton import knobs
from triton._C.libtriton import passes, proton
from triton.backends import backends
from triton.backends.compiler import GPUTarget

from kperf.compat.triton import VERSION
from kperf.errors import UsageError

try:
    from triton import _instrumentation as registry  # from 3.9 on
except ImportError:
    registry = None

ALIGNMENT = 128
"""Bytes at whose multiples each CTA's part of the profile buffer begins."""
_UNCAPPED = 1 << 24
"""What Proton is given as an SM's shared memory. Of the true size it would keep no more than 4 % for events where two
CTAs fit (`maxSharedMemRatio`), and say nothing; how large the circular buffer is, is chosen before."""
_LOWERING = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
"""What is lowered in another way than in this file is another kernel, to Triton's cache too."""
_POINTS = ("load-dialects", "ttgpuir-to-llvmir", "llvmir-to-llvm")
_BACKENDS = {"cuda": "nvidia", "hip": "amd"}
_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class EventLowering:
    """How events become code: taken by `warps` of a CTA, each in a circular buffer of `bytes_per_warp`.

    `memory`: where the buffer is until the CTA ends; `clock_bits`: of a timestamp.
    """

    warps: tuple[int, ...]
    bytes_per_warp: int
    memory: Literal["shared", "global"]
    clock_bits: Literal[32, 64]

    @property
    def key(self) -> str:
        """What tells two lowerings of one module apart: the compile options carry it, or the cache mixes them up."""
        warps = ".".join(map(str, self.warps))  # a comma would separate modes
        return f"kperf-{_LOWERING}:{warps}:{self.bytes_per_warp}:{self.memory}:{self.clock_bits}"

    def add_to_ttgir(self, manager: Any) -> None:
        """The passes that run when TTGIR becomes LLVM's dialect."""
        proton.add_convert_proton_to_protongpu(
            manager,
            proton.METRIC_TYPE.CYCLE,
            proton.SAMPLING_STRATEGY.SELECTIVE,
            ",".join(map(str, self.warps)),
            proton.GRANULARITY.WARP,
            proton.BUFFER_STRATEGY.CIRCULAR,
            {"shared": proton.BUFFER_TYPE.SHARED, "global": proton.BUFFER_TYPE.GLOBAL}[self.memory],
            self.bytes_per_warp * len(self.warps),
            _UNCAPPED,
            1,  # the least size of the device buffer: it is made to measure
            ALIGNMENT,
            self.clock_bits == 64,
        )
        # Not Proton's schedule-buffer-store pass: it writes an outer scope's start after the inner scopes' events.
        passes.common.add_cse(manager)
        proton.add_allocate_proton_shared_memory(manager)

    def add_to_llvm_dialect(self, target: GPUTarget, manager: Any) -> None:
        """The passes that run before LLVM's dialect becomes LLVM IR."""
        if hasattr(proton, "add_allocate_proton_global_scratch_buffer"):  # to 3.7
            proton.add_allocate_proton_global_scratch_buffer(manager)
        if target.backend == "cuda":
            proton.add_convert_proton_nvidia_gpu_to_llvm(manager)
        else:
            proton.add_convert_proton_amd_gpu_to_llvm(manager, target.arch)


class _Hook:
    """What the compiler calls at its two instrumentation points, to 3.8."""

    def __init__(self, lowering: EventLowering, target: GPUTarget) -> None:
        self.lowering, self.target = lowering, target

    def load_dialects(self, context: Any) -> None:
        proton.load_dialects(context)

    def patch(self, stage: str, manager: Any, context: Any) -> None:
        proton.load_dialects(context)
        if stage == "ttgpuir_to_llvmir":
            self.lowering.add_to_ttgir(manager)
        elif stage == "llvmir_to_llvm":
            self.lowering.add_to_llvm_dialect(self.target, manager)


@contextmanager
def instrumentation(lowering: EventLowering, target: GPUTarget, *, apart: bool = False) -> Iterator[None]:
    """Within it, kernels with events are compiled for `target` so that they take them.

    `apart`: what has `instrumentation_option` alone, and not what the JIT launches meanwhile, in any thread.

    Raises `UsageError` when another profiling session is open, this one's or Proton's own: they share the compiler; and
    with a Triton that lowers events in another way.
    """
    backend = _BACKENDS[target.backend]
    if registry is None and not hasattr(backends[backend].compiler, "instrumentation"):
        raise UsageError(f"Triton {VERSION} has no place for the passes that lower events: install triton 3.6 to 3.9")
    if _is_instrumented(backend) or not _one_at_a_time.acquire(blocking=False):
        raise UsageError("another profiling session is open: end it first, there can be one at a time")
    with ExitStack() as stack:
        stack.callback(_one_at_a_time.release)
        if registry is None:
            compiler = backends[backend].compiler
            compiler.instrumentation = _Hook(lowering, target)
            stack.callback(setattr, compiler, "instrumentation", None)
        else:
            callbacks = (proton.load_dialects, lowering.add_to_ttgir, partial(lowering.add_to_llvm_dialect, target))
            for point, callback in zip(_POINTS, callbacks, strict=True):
                registry.register_instrumentation(point=point, backend=backend, callback=callback)
                stack.callback(registry.unregister_instrumentation, point=point, backend=backend)
        if apart:
            stack.enter_context(_compiled_apart(lowering.key))
        else:
            before, knobs.compilation.instrumentation_mode = knobs.compilation.instrumentation_mode, lowering.key
            stack.callback(setattr, knobs.compilation, "instrumentation_mode", before)
        yield


_apart = ""
"""The mode of what is compiled with `instrumentation_option` alone."""


@contextmanager
def _compiled_apart(mode: str) -> Iterator[None]:
    global _apart  # noqa: PLW0603
    before, _apart = _apart, mode
    try:
        yield
    finally:
        _apart = before


@contextmanager
def changed_ptx(change: Callable[[str], str], key: str) -> Iterator[None]:
    """Within it, what has `instrumentation_option` is compiled from PTX that was changed.

    `key` tells one change from another: what changes the stages of the compiler is not in the key of Triton's cache.
    What `change` raises comes out of the compiler as it is. To be opened inside `instrumentation` with `apart`.
    """
    mode, before = f"{_apart}:{key}", knobs.runtime.add_stages_inspection_hook

    def hook(*arguments: Any) -> Any:
        if not arguments:  # from 3.7 on: what else is to be in the key of whatever is compiled meanwhile
            return before() if before is not None else ("", "")
        if before is not None:
            before(*arguments)
        _, stages, options, *_ = arguments
        if getattr(options, "instrumentation_mode", "") == mode:
            make = stages["ptx"]
            stages["ptx"] = lambda source, metadata: change(make(source, metadata))
        return None

    with _compiled_apart(mode):
        knobs.runtime.add_stages_inspection_hook = hook
        try:
            yield
        finally:
            knobs.runtime.add_stages_inspection_hook = before


def _is_instrumented(backend: str) -> bool:
    if registry is not None:
        return any((point, backend) in registry._callbacks for point in _POINTS)
    return bool(backends[backend].compiler.instrumentation)


def instrumentation_option() -> dict[str, str]:
    """The compile option by which the cache tells kernels of one instrumentation from those of another."""
    return {"instrumentation_mode": _apart or knobs.compilation.instrumentation_mode}
