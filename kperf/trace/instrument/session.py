"""Lower the events of a traced kernel: Proton's compiler passes, driven without its profiler, its hooks or a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from kperf.arch import SM_90A, Arch
from kperf.compat.triton.instrumentation import ALIGNMENT, EventLowering, instrumentation
from kperf.errors import UsageError

HEADER_BYTES = 40
EVENT_BYTES = 8
COUNTER_BYTES = 16
"""A circular buffer's counter and address, which a thread may keep on the stack."""
CYCLES_AN_EVENT = 30
"""What an event costs the warp that writes it: with all events an iteration of vanilla, improved and improved_plus
takes 160 to 265 cycles more, for 6 to 8 events (results/h200/fig11)."""
BUFFER_LIMIT = (1 << 31) - ALIGNMENT
"""Bytes of a launch's buffer: Proton computes where a CTA's part begins in 32 bits, and wraps around from 2 GiB on."""
SMALLEST_BUFFER = 64
"""Bytes of events of a warp, as Proton has it: the last eight."""


@dataclass(frozen=True)
class Recording:
    """How events are kept: by one warp of each group, in a circular buffer, with a clock of 32 or 64 bits.

    `shared`: in shared memory, copied out when the CTA ends. `global`: straight to device memory. `arch`: what
    the kernel is compiled for.
    """

    warps: tuple[int, ...]
    total_warps: int
    bytes_per_warp: int = 8192
    memory: Literal["shared", "global"] = "shared"
    clock_bits: Literal[32, 64] = 32
    arch: Arch = SM_90A

    def __post_init__(self) -> None:
        """Refuse what Proton would refuse late, or crash on."""
        size = self.bytes_per_warp
        if size < SMALLEST_BUFFER or size & (size - 1):
            raise UsageError(
                f"a trace buffer of {size} bytes a warp is not a power of two of at least {SMALLEST_BUFFER}"
            )
        if self.memory == "shared" and self.buffer_bytes > self.arch.cta_shared_bytes:
            raise UsageError(f"a trace buffer of {self.buffer_bytes} bytes is more than an SM's shared memory")

    @property
    def buffer_bytes(self) -> int:
        """Bytes of events of a CTA."""
        return self.bytes_per_warp * len(self.warps)

    @property
    def events_per_warp(self) -> int:
        """Events that a warp's circular buffer holds; older ones are overwritten."""
        return self.bytes_per_warp // EVENT_BYTES

    @property
    def block_bytes(self) -> int:
        """Bytes of device memory for a CTA: header, one counter a warp, events; rounded up to the alignment."""
        size = HEADER_BYTES + 4 * self.total_warps + self.buffer_bytes
        return -(-size // ALIGNMENT) * ALIGNMENT

    @property
    def lowering(self) -> EventLowering:
        """How the compiler is to make code of them."""
        return EventLowering(self.warps, self.bytes_per_warp, self.memory, self.clock_bits)


@contextmanager
def session(recording: Recording, *, apart: bool = False) -> Iterator[None]:
    """Within it, kernels with events are compiled for the recording's target so that they write them.

    `apart`: those that `ir.compile` or `ir.override` compiles, and not what a script launches meanwhile.

    Raises `UsageError` when another profiling session is open, this one's or Proton's own: they share the compiler; and
    with a Triton that lowers events in another way.
    """
    with instrumentation(recording.lowering, recording.arch.target, apart=apart):
        yield
