"""Ampere: sm_80 (A100) and sm_86 (A10, A40, RTX 30).

Limits: CUDA C++ Programming Guide, "Compute Capabilities", table "Technical Specifications per Compute Capability";
units of allocation: cuda_occupancy.h of the CUDA toolkit. Results a cycle: the same guide, "Arithmetic Instructions".
"""

from dataclasses import replace

from kperf.arch.arch import Arch
from kperf.arch.nvidia import SASS, TRITON, TRITON_COMPLETION

SM_80 = Arch(
    name="sm_80",
    backend="cuda",
    number=80,
    gpus="A100",
    warp_size=32,
    sub_partitions=4,
    sm_registers=64 * 1024,
    thread_registers=255,
    register_unit=256,
    sm_warps=64,
    sm_ctas=32,
    cta_warps=32,
    sm_shared_bytes=164 * 1024,
    cta_shared_bytes=163 * 1024,
    reserved_shared_bytes=1024,
    shared_unit=128,
    shared_bank_bytes=4,
    shared_name="shared memory",
    exponentials_per_cycle=16,
    fp32_per_cycle=64,
    shared_bytes_per_cycle=128,
    memory_bytes_per_cycle=13.4,  # A100 80GB data sheet: 2.039 TB/s
    # NVIDIA A100 Tensor Core GPU Architecture (2020), table 1: 312 TFLOPS of bfloat16 = 108 SMs * 2048 * 1.41 GHz.
    # No fp8: Triton multiplies it as fp16.
    flop_per_cycle={
        "fp8": 2048,
        "int8": 4096,
        "bf16": 2048,
        "fp16": 2048,
        "tf32": 1024,
        "fp64": 128,
        "fp32": 128,
    },
    operations=TRITON,
    completion=TRITON_COMPLETION,
    opcodes=SASS,
    # NVIDIA Ampere GPU Architecture Tuning Guide, "Unified Shared Memory/L1/Texture Cache"; so for 8.6 below.
    cache_bytes=192 * 1024,
    carveouts=tuple(1024 * kb for kb in (0, 8, 16, 32, 64, 100, 132, 164)),
)

SM_86 = replace(
    SM_80,
    name="sm_86",
    number=86,
    gpus="A10, A40, RTX 30",
    sm_warps=48,
    sm_ctas=16,
    sm_shared_bytes=100 * 1024,
    cta_shared_bytes=99 * 1024,
    cache_bytes=128 * 1024,
    carveouts=tuple(1024 * kb for kb in (0, 8, 16, 32, 64, 100)),
    fp32_per_cycle=128,
    memory_bytes_per_cycle=4.9,  # A10 data sheet: 0.6 TB/s
    # NVIDIA Ampere GA102 GPU Architecture (2021); A10 data sheet: 125 TFLOPS of bfloat16 = 72 SMs * 1024 * 1.695 GHz.
    # GeForce has half of it where sums are float32.
    flop_per_cycle={
        "fp8": 1024,
        "int8": 2048,
        "bf16": 1024,
        "fp16": 1024,
        "tf32": 512,
        "fp64": 4,
        "fp32": 256,
    },
)
