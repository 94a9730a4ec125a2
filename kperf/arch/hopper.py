"""Hopper: sm_90a (H100, H200, GH200). MMAs of warp groups (wgmma) complete in order.

Limits: CUDA C++ Programming Guide, "Compute Capabilities", as for Ampere.
"""

from dataclasses import replace

from kperf.arch.ampere import SM_80
from kperf.arch.arch import Opcode
from kperf.arch.nvidia import MBARRIER, SASS, TMA, TMA_SASS, TRITON, TRITON_COMPLETION

SM_90A = replace(
    SM_80,
    name="sm_90a",
    number=90,  # Triton adds the `a`
    gpus="H100, H200, GH200",
    sm_shared_bytes=228 * 1024,
    cta_shared_bytes=227 * 1024,
    # NVIDIA Hopper Tuning Guide, "Unified Shared Memory/L1/Texture Cache".
    cache_bytes=256 * 1024,
    carveouts=tuple(1024 * kb for kb in (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)),
    fp32_per_cycle=128,
    memory_bytes_per_cycle=20.0,  # H200 data sheet: 4.8 TB/s
    # NVIDIA H100 Tensor Core GPU Architecture (2022), table 2: 989 TFLOPS of bfloat16 = 132 SMs * 4096 * 1.83 GHz.
    flop_per_cycle={
        "fp8": 8192,
        "int8": 8192,
        "bf16": 4096,
        "fp16": 4096,
        "tf32": 2048,
        "fp64": 256,
        "fp32": 256,
    },
    operations={
        **TRITON,
        **MBARRIER,
        **TMA,
        "ttng.warp_group_dot": "mma",
        "ttng.warp_group_dot_wait": "mma wait",
    },
    completion={**TRITON_COMPLETION, "ttng.warp_group_dot": "wgmma"},
    opcodes=(
        Opcode("HGMMA", "mma", "wgmma", "always"),
        Opcode("QGMMA", "mma", "fp8 wgmma", "always"),
        Opcode("IGMMA", "mma", "int8 wgmma", "always"),
        Opcode("BGMMA", "mma", "binary wgmma", "always"),
        Opcode("WARPGROUP.DEPBAR", "mma wait", "wait for wgmma", "always"),
        *TMA_SASS,
        *SASS,
    ),
)
