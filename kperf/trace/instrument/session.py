"""Lower the records of a traced kernel: Proton's compiler passes, driven without its profiler, its hooks or a GPU."""

import hashlib
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import triton
from triton import knobs
from triton._C.libtriton import passes, proton
from triton.backends.nvidia.compiler import CUDABackend

from kperf.arch import KNOWN
from kperf.errors import UsageError

ALIGNMENT = 128
HEADER_BYTES = 40
RECORD_BYTES = 8
CYCLES_A_RECORD = 30
"""What a record costs the warp that writes it: with all records a trip of vanilla, improved and improved_plus takes 160
to 265 cycles more, for 6 to 8 records (results/h200/fig11)."""
SMALLEST_RING = 64
"""Bytes of records of a warp, as Proton has it."""

_MOST_SHARED_BYTES = max(arch.cta_shared_bytes for arch in KNOWN)
_UNCAPPED = 1 << 24
"""What Proton is told of an SM's shared memory. Of the true size it would keep no more than 4 % for records where two
blocks fit (`maxSharedMemRatio`), and say nothing; how large the ring is, is chosen before (`trace.capture.traced`)."""

_LOWERING = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()[:8]
"""What is lowered in another way than in this file is another kernel, to Triton's cache too."""

_one_at_a_time = threading.Lock()


@dataclass(frozen=True)
class Recording:
    """How records are kept: by one warp of each group, in a ring of `bytes_per_warp`, with a clock of 32 or 64 bits.

    `shared`: in shared memory, copied out when the block ends. `global`: straight to device memory.
    """

    warps: tuple[int, ...]
    total_warps: int
    bytes_per_warp: int = 8192
    memory: Literal["shared", "global"] = "shared"
    clock_bits: Literal[32, 64] = 32

    def __post_init__(self) -> None:
        """Refuse what Proton would refuse late, or crash on."""
        size = self.bytes_per_warp
        if size < SMALLEST_RING or size & (size - 1):
            raise UsageError(f"a trace buffer of {size} bytes a warp is not a power of two of at least {SMALLEST_RING}")
        if self.memory == "shared" and self.buffer_bytes > _MOST_SHARED_BYTES:
            raise UsageError(f"a trace buffer of {self.buffer_bytes} bytes is more than an SM's shared memory")

    @property
    def buffer_bytes(self) -> int:
        """Bytes of records of a block."""
        return self.bytes_per_warp * len(self.warps)

    @property
    def records_per_warp(self) -> int:
        """Records that a warp's ring holds; older ones are overwritten."""
        return self.bytes_per_warp // RECORD_BYTES

    @property
    def block_bytes(self) -> int:
        """Bytes of device memory for a block: header, one counter a warp, records; rounded up to the alignment."""
        size = HEADER_BYTES + 4 * self.total_warps + self.buffer_bytes
        return -(-size // ALIGNMENT) * ALIGNMENT

    @property
    def key(self) -> str:
        """What tells two lowerings of one module apart: the compile options carry it, or the cache mixes them up."""
        warps = ",".join(map(str, self.warps))
        return f"kperf-{_LOWERING}:{warps}:{self.bytes_per_warp}:{self.memory}:{self.clock_bits}"


class _Passes:
    """What the compiler calls at its two instrumentation points."""

    def __init__(self, recording: Recording) -> None:
        self.recording = recording

    def load_dialects(self, context: Any) -> None:
        proton.load_dialects(context)

    def patch(self, stage: str, manager: Any, context: Any) -> None:
        proton.load_dialects(context)
        if stage == "ttgpuir_to_llvmir":
            proton.add_convert_proton_to_protongpu(
                manager,
                proton.METRIC_TYPE.CYCLE,
                proton.SAMPLING_STRATEGY.SELECTIVE,
                ",".join(map(str, self.recording.warps)),
                proton.GRANULARITY.WARP,
                proton.BUFFER_STRATEGY.CIRCULAR,
                {"shared": proton.BUFFER_TYPE.SHARED, "global": proton.BUFFER_TYPE.GLOBAL}[self.recording.memory],
                self.recording.buffer_bytes,
                _UNCAPPED,
                1,  # the least size of the device buffer: it is made to measure
                ALIGNMENT,
                self.recording.clock_bits == 64,
            )
            # Not Proton's schedule-buffer-store pass: it writes an outer scope's start after the inner scopes' records.
            passes.common.add_cse(manager)
            proton.add_allocate_proton_shared_memory(manager)
        elif stage == "llvmir_to_llvm":
            proton.add_allocate_proton_global_scratch_buffer(manager)
            proton.add_convert_proton_nvidia_gpu_to_llvm(manager)


def why_no_records() -> str | None:
    """None where this Triton's compiler has a place for our passes, else a sentence: 3.9 has another, not tried yet."""
    if hasattr(CUDABackend, "instrumentation"):
        return None
    return (
        f"Triton {triton.__version__} lowers records in another way than Triton 3.6.0, from which they can be read: "
        "install triton==3.6.0 to trace"
    )


@contextmanager
def session(recording: Recording) -> Iterator[None]:
    """Within it, kernels with records are compiled so that they write them.

    Raises `UsageError` when another profiling session is open, this one's or Proton's own: they share the compiler; and
    with a Triton that lowers records in another way.
    """
    if reason := why_no_records():
        raise UsageError(reason)
    if CUDABackend.instrumentation or not _one_at_a_time.acquire(blocking=False):
        raise UsageError("another profiling session is open: end it first, there can be one at a time")
    CUDABackend.instrumentation = _Passes(recording)
    knobs.compilation.instrumentation_mode = recording.key
    try:
        yield
    finally:
        CUDABackend.instrumentation = None
        knobs.compilation.instrumentation_mode = ""
        _one_at_a_time.release()
