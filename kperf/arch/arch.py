"""The type of an architecture: limits, occupancy, peak rates, tables of its operations and of its machine code."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from kperf.compat.triton import GPUTarget

Dtype = Literal["fp4", "fp8", "int8", "bf16", "fp16", "tf32", "fp32", "fp64"]
"""Of an MMA's operands; fp32 is a product without tensor cores."""

Completion = Literal["sync", "wgmma", "tcgen05"]
"""How one knows that an MMA is over.

sync: the instruction that reads its result waits. wgmma: MMAs of a warp group complete in the order of their issue, and
a wait says how many may be left in flight. tcgen05: the tensor core arrives at an mbarrier.
"""

OperationKind = Literal[
    "mma",  # multiplies matrices
    "mma wait",  # waits for wgmma
    "mma commit",  # has the tensor core arrive at an mbarrier when all MMAs before it are over
    "load",  # device memory to registers
    "copy",  # device memory to shared memory, in the background
    "copy wait",  # waits for copies that arrive at no mbarrier
    "store",  # registers or shared memory to device memory
    "atomic",
    "barrier wait",  # waits for a phase of an mbarrier
    "barrier arrive",
    "barrier",  # of all threads of a CTA
    "shared load",
    "shared store",
    "tensor memory load",
    "tensor memory store",
    "tensor memory copy",  # shared to tensor memory, by the tensor core
    "conversion",  # of a layout, through shared memory or shuffles
]
"""What an operation of TTGIR does on this architecture."""

OpcodeKind = Literal[
    "mma",
    "mma wait",
    "copy",
    "copy wait",
    "load",
    "store",
    "atomic",
    "shared load",
    "shared store",
    "local load",  # of spilled registers
    "local store",
    "tensor memory",
    "barrier",
    "mbarrier",
    "exp2",
    "special function",
    "conversion",
    "shuffle",
]
"""What an instruction does."""

Place = Literal["always", "without asynchronous MMA", "never"]
"""Whether an instruction is part of a kernel's schedule.

Under asynchronous MMAs the assembler mixes some freely with others, which says nothing.
"""


@dataclass(frozen=True)
class Opcode:
    """Instructions whose opcodes begin with `prefix`: what they do, what they are called, and where they count."""

    prefix: str
    kind: OpcodeKind
    name: str
    ordered: Place = "never"


@dataclass(frozen=True)
class Arch:
    """An architecture as kernels see it.

    The words are NVIDIA's: on AMD an SM is a compute unit, a CTA a work group, a warp a wave, a sub-partition a SIMD,
    and shared memory the local data share.

    Attributes:
        name: the compiler's, `sm_90a` or `gfx942`.
        backend, number: what Triton calls the target: `cuda` and 90, or `hip` and `gfx942`.
        gpus: some that have it, for messages.
        warp_size: threads.
        sub_partitions: of an SM; a warp's registers and its place come from one of them.
        sm_registers, thread_registers: 32-bit ones, of an SM and at most of a thread.
        register_unit: registers that a warp is given at a time.
        sm_warps, sm_ctas, cta_warps: at most on an SM, on an SM, in a CTA.
        sm_shared_bytes, cta_shared_bytes: bytes of shared memory of an SM, and at most of a CTA.
        reserved_shared_bytes: bytes that the system takes for each CTA besides.
        shared_unit: bytes that a CTA is given at a time.
        cache_bytes, carveouts: what L1 and shared memory of an SM share, and what shared memory may have of it; 0 and
            none where they share nothing.
        shared_bank_bytes: of a bank of shared memory, which serves one such word in a cycle.
        shared_name: what the vendor calls shared memory.
        words: what the vendor says in the place of NVIDIA's words, singular and plural.
        flop_per_cycle: dense operations of an SM in a cycle, by the type of the operands.
        exponentials_per_cycle, fp32_per_cycle: results of an SM in a cycle.
        shared_bytes_per_cycle: between an SM and its shared memory.
        memory_bytes_per_cycle: from device memory to an SM while all load; of the GPU whose data sheet is cited.
        operations: operation of TTGIR -> what it does.
        completion: an MMA in TTGIR -> how it completes.
        opcodes: of its machine code; the first whose prefix fits.
    """

    name: str
    backend: Literal["cuda", "hip"]
    number: int | str
    gpus: str
    warp_size: int
    sub_partitions: int
    sm_registers: int
    thread_registers: int
    register_unit: int
    sm_warps: int
    sm_ctas: int
    cta_warps: int
    sm_shared_bytes: int
    cta_shared_bytes: int
    reserved_shared_bytes: int
    shared_unit: int
    shared_bank_bytes: int
    shared_name: str
    exponentials_per_cycle: int
    fp32_per_cycle: int
    shared_bytes_per_cycle: int
    memory_bytes_per_cycle: float
    flop_per_cycle: Mapping[Dtype, int] = field(hash=False)
    operations: Mapping[str, OperationKind] = field(hash=False, repr=False)
    completion: Mapping[str, Completion] = field(hash=False, repr=False)
    opcodes: tuple[Opcode, ...] = field(hash=False, repr=False)
    cache_bytes: int = 0
    carveouts: tuple[int, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict, hash=False, repr=False)

    def in_its_words(self, text: str) -> str:
        """A sentence with the vendor's words, none of which takes `an`; names of options, as `num_warps`, stay."""
        if not self.words:
            return text
        known = "|".join(sorted(self.words, key=len, reverse=True))
        return re.sub(rf"\b(an? )?({known})\b", lambda match: "a " * bool(match[1]) + self.words[match[2]], text)

    @property
    def target(self) -> GPUTarget:
        """What Triton compiles for."""
        from kperf.compat.triton import GPUTarget

        return GPUTarget(self.backend, self.number, self.warp_size)

    @property
    def compute_capability(self) -> tuple[int, int] | None:
        """(major, minor) on NVIDIA, None on AMD."""
        return divmod(self.number, 10) if isinstance(self.number, int) else None

    @property
    def device_capability(self) -> tuple[int, int]:
        """(major, minor) as torch gives it: (9, 0) of sm_90a, (9, 4) of gfx942."""
        if isinstance(self.number, int):
            return divmod(self.number, 10)
        digits = self.number.removeprefix("gfx")  # the last one is a step
        return int(digits[:-2]), int(digits[-2], 16)

    @property
    def thread_register_unit(self) -> int:
        """Registers that a thread is given at a time."""
        return self.register_unit // self.warp_size

    @property
    def shared_banks(self) -> int:
        """Banks of an SM's shared memory."""
        return self.shared_bytes_per_cycle // self.shared_bank_bytes

    def ctas_per_sm(self, registers: int, shared_bytes: int, warps: int) -> int:
        """CTAs that an SM holds at once; 0 if not one fits.

        By registers a thread, bytes of shared memory a CTA and warps a CTA. The formulas are those of cuda_occupancy.h
        in the CUDA toolkit: registers are given to a warp out of one sub-partition, so what is left over in each of
        them is lost.
        """
        if shared_bytes > self.cta_shared_bytes or warps > self.cta_warps or registers > self.thread_registers:
            return 0
        shared = _round_up(shared_bytes, self.shared_unit) + self.reserved_shared_bytes
        by_shared = self.sm_shared_bytes // shared if shared else self.sm_ctas
        return min(self.sm_ctas, self.sm_warps // warps, self._warps_by_registers(registers) // warps, by_shared)

    def _warps_by_registers(self, registers: int) -> int:
        of_a_warp = max(_round_up(registers * self.warp_size, self.register_unit), self.register_unit)
        return self.sm_registers // self.sub_partitions // of_a_warp * self.sub_partitions

    def l1_bytes(self, ctas: int, shared_bytes: int) -> int:
        """What is left to an SM's L1 cache beside so many CTAs, each with `shared_bytes`; 0 where it shares nothing.

        The driver gives shared memory the least of `carveouts` that is enough.
        """
        taken = ctas * (_round_up(shared_bytes, self.shared_unit) + self.reserved_shared_bytes)
        return self.cache_bytes - min(size for size in self.carveouts if size >= taken) if self.carveouts else 0

    def shared_bytes_left(self, registers: int, shared_bytes: int, warps: int) -> int:
        """Bytes of shared memory that a CTA may take besides without one CTA less fitting on an SM."""
        fit = max(self.ctas_per_sm(registers, shared_bytes, warps), 1)
        each = self.sm_shared_bytes // fit // self.shared_unit * self.shared_unit - self.reserved_shared_bytes
        return max(min(each, self.cta_shared_bytes) - shared_bytes, 0)


@dataclass(frozen=True)
class Device:
    """A GPU of an architecture: what one takes its numbers from where none is there.

    sms: streaming multiprocessors or compute units. max_mhz: the highest clock. memory_bytes: of device memory.
    l2_bytes: of the L2 cache. l2_bytes_per_cycle: from it to one SM; l2_latency: cycles until a load from it begins to
    arrive; both about, from published microbenchmarks.
    """

    name: str
    arch: Arch
    sms: int
    max_mhz: int
    memory_bytes: int
    l2_bytes: int
    l2_bytes_per_cycle: int
    l2_latency: int

    def peak_tflops(self, dtype: Dtype) -> float:
        """Dense TFLOPS of all SMs at the highest clock."""
        return self.sms * self.arch.flop_per_cycle[dtype] * self.max_mhz * 1e6 / 1e12


def _round_up(number: int, unit: int) -> int:
    return -(-number // unit) * unit
