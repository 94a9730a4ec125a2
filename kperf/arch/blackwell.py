"""Blackwell: sm_100a (B200), sm_103a (B300), and sm_120 (RTX 50, RTX PRO), which has Ampere's MMAs.

The tensor cores of sm_100a and sm_103a work for the whole CTA (tcgen05), keep sums in tensor memory and say by an
mbarrier that they are done. Limits: CUDA C++ Programming Guide, "Compute Capabilities", as for Ampere.
"""

from dataclasses import replace

from kperf.arch.ada import SM_89
from kperf.arch.arch import Opcode
from kperf.arch.hopper import SM_90A
from kperf.arch.nvidia import MBARRIER, SASS, TMA, TMA_SASS, TRITON, TRITON_COMPLETION

SM_100A = replace(
    SM_90A,
    name="sm_100a",
    number=100,
    gpus="B200, GB200",
    memory_bytes_per_cycle=29.0,  # HGX B200 data sheet: 8 TB/s a GPU, and a B300 has as many
    # NVIDIA Blackwell Architecture Technical Brief (2024), HGX B200: 2.25 PFLOPS of bfloat16 a GPU = 148 SMs * 8192 *
    # 1.85 GHz, 4.5 of fp8 and int8, 9 of fp4, 1.1 of tf32, 0.04 of fp64.
    flop_per_cycle={
        "fp4": 32768,
        "fp8": 16384,
        "int8": 16384,
        "bf16": 8192,
        "fp16": 8192,
        "tf32": 4096,
        "fp64": 128,
        "fp32": 256,
    },
    operations={
        **TRITON,
        **MBARRIER,
        **TMA,
        "ttng.tc_gen5_mma": "mma",
        "ttng.tc_gen5_mma_scaled": "mma",
        "ttng.tc_gen5_commit": "mma commit",
        "ttng.tmem_load": "tensor memory load",
        "ttng.tmem_store": "tensor memory store",
        "ttng.tmem_copy": "tensor memory copy",
    },
    completion={**TRITON_COMPLETION, "ttng.tc_gen5_mma": "tcgen05", "ttng.tc_gen5_mma_scaled": "tcgen05"},
    opcodes=(
        Opcode("UTCHMMA", "mma", "tcgen05", "always"),
        Opcode("UTCQMMA", "mma", "fp8 tcgen05", "always"),
        Opcode("UTCIMMA", "mma", "int8 tcgen05", "always"),
        Opcode("UTCOMMA", "mma", "fp4 tcgen05", "always"),
        Opcode("UTCBAR", "mma wait", "tcgen05 commit", "always"),
        Opcode("UTCCP", "tensor memory", "tensor memory copy", "always"),
        Opcode("LDTM", "tensor memory", "tensor memory load", "always"),
        Opcode("STTM", "tensor memory", "tensor memory store", "always"),
        *TMA_SASS,
        *SASS,
    ),
)

SM_103A = replace(
    SM_100A,
    name="sm_103a",
    number=103,
    gpus="B300, GB300",
    exponentials_per_cycle=32,  # NVIDIA Blackwell Ultra (2025): twice the exponentials of Blackwell
    # HGX B300: 15 PFLOPS of dense fp4 a GPU, the other types' 16 and 8 bits as on B200; int8 and fp64 are small.
    flop_per_cycle={
        "fp4": 49152,
        "fp8": 16384,
        "int8": 1024,
        "bf16": 8192,
        "fp16": 8192,
        "tf32": 4096,
        "fp64": 4,
        "fp32": 256,
    },
)

SM_120 = replace(
    SM_89,
    name="sm_120",
    number=120,
    gpus="RTX 50, RTX PRO 6000 Blackwell",
    memory_bytes_per_cycle=3.65,  # RTX PRO 6000 data sheet: 1.792 TB/s
    operations={**TRITON, **MBARRIER, **TMA},
    opcodes=(*TMA_SASS, *SASS),
    # NVIDIA RTX Blackwell GPU Architecture (2025), RTX PRO 6000: 504 TFLOPS of bfloat16 = 188 SMs * 1024 * 2.62 GHz,
    # 1007 of fp8, 2015 of fp4. GeForce has half of it where sums are float32.
    flop_per_cycle={**SM_89.flop_per_cycle, "fp4": 4096},
)
