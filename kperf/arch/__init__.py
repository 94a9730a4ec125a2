"""What belongs to a GPU: one file an architecture, and GPUs by name. Imports nothing heavy.

`of` finds an architecture by Triton's target or by a name; a new one is a file here and an entry of `KNOWN`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kperf.arch.ada import SM_89
from kperf.arch.ampere import SM_80, SM_86
from kperf.arch.arch import Arch, Completion, Device, Dtype, Opcode, OpcodeKind, OperationKind
from kperf.arch.blackwell import SM_100A, SM_103A, SM_120
from kperf.arch.cdna3 import GFX942
from kperf.arch.cdna4 import GFX950
from kperf.arch.devices import (
    COPY_OVER_ATOMICS,
    H100_FENCE_NS,
    H100_HIDDEN_FENCES,
    H100_LOCK_NS,
    H100_TIME_OVER_COPY,
    H100_UPDATE_NS,
    H200,
    H200_ATOMIC_BYTES_PER_CYCLE,
    H200_ATOMIC_NS,
    H200_COPY_GB_PER_S,
    H200_CTA_NS,
    H200_FIRST_L2_LATENCY,
    H200_L1_BYTES_PER_CYCLE,
    H200_L1_LATENCY,
    H200_L2_KEPT_BYTES,
    H200_L2_LINE_BYTES_PER_CYCLE,
    H200_PARTIAL_STORE_GB_PER_S,
    H200_SM_BYTES_IN_FLIGHT,
    MI300X,
)
from kperf.arch.hopper import SM_90A
from kperf.errors import UsageError

if TYPE_CHECKING:
    from kperf.compat.triton import GPUTarget

__all__ = [
    "COPY_OVER_ATOMICS",
    "GFX942",
    "GFX950",
    "H100_FENCE_NS",
    "H100_HIDDEN_FENCES",
    "H100_LOCK_NS",
    "H100_TIME_OVER_COPY",
    "H100_UPDATE_NS",
    "H200",
    "H200_ATOMIC_BYTES_PER_CYCLE",
    "H200_ATOMIC_NS",
    "H200_COPY_GB_PER_S",
    "H200_CTA_NS",
    "H200_FIRST_L2_LATENCY",
    "H200_L1_BYTES_PER_CYCLE",
    "H200_L1_LATENCY",
    "H200_L2_KEPT_BYTES",
    "H200_L2_LINE_BYTES_PER_CYCLE",
    "H200_PARTIAL_STORE_GB_PER_S",
    "H200_SM_BYTES_IN_FLIGHT",
    "KNOWN",
    "MI300X",
    "OPERATIONS",
    "SM_80",
    "SM_86",
    "SM_89",
    "SM_90A",
    "SM_100A",
    "SM_103A",
    "SM_120",
    "Arch",
    "Completion",
    "Device",
    "Dtype",
    "Opcode",
    "OpcodeKind",
    "OperationKind",
    "completion",
    "of",
    "operations",
]

KNOWN = (SM_80, SM_86, SM_89, SM_90A, SM_100A, SM_103A, SM_120, GFX942, GFX950)

OPERATIONS: dict[str, OperationKind] = {name: kind for arch in KNOWN for name, kind in arch.operations.items()}
"""Operations of all of them: an operation of TTGIR means the same wherever it is."""


def operations(*kinds: OperationKind) -> frozenset[str]:
    """Names of the operations of these kinds, on any architecture."""
    return frozenset(name for name, kind in OPERATIONS.items() if kind in kinds)


def completion(operation: str) -> Completion | None:
    """How an MMA of TTGIR completes; None for what is no MMA."""
    return next((arch.completion[operation] for arch in KNOWN if operation in arch.completion), None)


def of(target: GPUTarget | str) -> Arch:
    """The architecture of a target: Triton's own, `sm_90a` (or `sm_90`), `gfx942`, or TTGIR's `cuda:90`.

    Raises `UsageError` for one that is not known.
    """
    name = target if isinstance(target, str) else f"{target.backend}:{target.arch}"
    for arch in KNOWN:
        if name in (arch.name, arch.name.removesuffix("a"), f"{arch.backend}:{arch.number}"):
            return arch
    known = ", ".join(arch.name for arch in KNOWN)
    raise UsageError(f"no GPU architecture {name!r} is known: choose from {known}")
