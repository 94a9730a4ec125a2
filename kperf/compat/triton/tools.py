"""The tools of Triton's wheel: assemblers and disassemblers."""

from pathlib import Path

import triton
from triton import knobs


def ptxas(number: int) -> tuple[Path, str]:
    """Which ptxas assembles for a target (90 for sm_90a), and its version.

    Triton has one for Blackwell beside the older one; from 3.9 on Hopper is assembled by that, too, and the older one
    does not know the PTX that is written for it.
    """
    from triton.backends.nvidia.compiler import get_ptxas  # a build for ROCm lacks it

    tool = get_ptxas(number)
    return Path(tool.path), str(tool.version)


def assembler() -> str:
    """The versions of both ptxas that would assemble now, "12.8-12.9"; empty where Triton has none, as in ROCm's build.

    TRITON_PTXAS_PATH names another first one. torch.compile sets it in the process that it runs in, to torch's own,
    while the key of Triton's cache goes on with the version that it read first (`get_ptxas_version` is cached).
    """
    try:
        return f"{knobs.nvidia.ptxas.version}-{knobs.nvidia.ptxas_blackwell.version}"
    except RuntimeError:
        return ""


def binary_tool(name: str) -> Path:
    """cuobjdump or nvdisasm: of Triton's wheel."""
    return Path(triton.__file__).parent / "backends/nvidia/bin" / name
