"""CDNA 4: gfx950 (MI350X, MI355X).

Limits: AMD Instinct CDNA 4 Instruction Set Architecture (2025), as for CDNA 3; units of allocation: LLVM,
AMDGPUBaseInfo.cpp.
"""

from dataclasses import replace

from kperf.arch.cdna3 import GFX942

GFX950 = replace(
    GFX942,
    name="gfx950",
    number="gfx950",
    gpus="MI350X, MI355X",
    sm_shared_bytes=160 * 1024,
    cta_shared_bytes=160 * 1024,
    shared_unit=1280,
    exponentials_per_cycle=32,
    shared_bytes_per_cycle=256,
    memory_bytes_per_cycle=13.0,  # AMD CDNA 4 Architecture, MI355X: 8 TB/s
    # AMD CDNA 4 Architecture (white paper, 2025), MI355X: 2517 TFLOPS of bfloat16 = 256 units * 4096 * 2.4 GHz. It has
    # no tf32: Triton multiplies that as float32.
    flop_per_cycle={
        "fp4": 16384,
        "fp8": 8192,
        "int8": 8192,
        "bf16": 4096,
        "fp16": 4096,
        "tf32": 256,
        "fp64": 128,
        "fp32": 256,
    },
)
