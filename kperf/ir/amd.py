"""What a kernel for AMD's GPUs needs, read from its code object."""

import re
from dataclasses import dataclass

from kperf.arch import GFX942
from kperf.compat.triton import CompiledKernel
from kperf.errors import MeasurementError


@dataclass(frozen=True)
class AmdResources:
    """What a code object says of its kernel.

    vgprs: vector registers a thread, of them `agprs` accumulation registers; sgprs: scalar registers a wave; spills: of
    registers; scratch_bytes: of memory a thread, where spills go; lds_bytes: a work group's, static and at the launch;
    mfma: matrix instructions in the code.
    """

    vgprs: int
    agprs: int
    sgprs: int
    vgpr_spills: int
    sgpr_spills: int
    scratch_bytes: int
    lds_bytes: int
    mfma: int

    @property
    def fits(self) -> bool:
        """Whether a work group gets its local data share."""
        return self.lds_bytes <= GFX942.cta_shared_bytes


def amd_resources(kernel: CompiledKernel) -> AmdResources:
    """Read the metadata that the assembler puts into the code object (LLVM, "User Guide for AMDGPU Backend").

    Raises `MeasurementError` if a number is missing.
    """
    text = kernel.asm["amdgcn"]
    _, _, metadata = text.partition(".amdgpu_metadata")

    def number(key: str) -> int:
        match = re.search(rf"^[\s-]*\.{key}:\s*(\d+)$", metadata, re.MULTILINE)
        if not match:
            raise MeasurementError(f"the code object of {kernel.name} says no {key}")
        return int(match.group(1))

    return AmdResources(
        vgprs=number("vgpr_count"),
        agprs=number("agpr_count"),
        sgprs=number("sgpr_count"),
        vgpr_spills=number("vgpr_spill_count"),
        sgpr_spills=number("sgpr_spill_count"),
        scratch_bytes=number("private_segment_fixed_size"),
        lds_bytes=number("group_segment_fixed_size") + kernel.metadata.shared,
        mfma=len(re.findall(r"^\s*v_mfma_", text, re.MULTILINE)),
    )
