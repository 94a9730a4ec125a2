"""Ada: sm_89 (L4, L40S, RTX 40).

Limits: CUDA C++ Programming Guide, "Compute Capabilities", as for Ampere.
"""

from dataclasses import replace

from kperf.arch.ampere import SM_86

SM_89 = replace(
    SM_86,
    name="sm_89",
    number=89,
    gpus="L4, L40S, RTX 40",
    sm_ctas=24,
    memory_bytes_per_cycle=2.45,  # L40S data sheet: 0.864 TB/s
    # L40S data sheet (2023): 362 TFLOPS of bfloat16 = 142 SMs * 1024 * 2.49 GHz, 733 of fp8, 183 of tf32.
    # GeForce has half of it where sums are float32.
    flop_per_cycle={
        "fp8": 2048,
        "int8": 2048,
        "bf16": 1024,
        "fp16": 1024,
        "tf32": 512,
        "fp64": 4,
        "fp32": 256,
    },
)
