"""CDNA 3: gfx942 (MI300A, MI300X, MI325X).

Limits: AMD Instinct MI300 Instruction Set Architecture (2025), sections 1 and 3.6; units of allocation: LLVM,
AMDGPUBaseInfo.cpp.
"""

from kperf.arch.arch import Arch, Opcode
from kperf.arch.nvidia import TRITON, TRITON_COMPLETION

WORDS = {
    "SM": "CU",
    "SMs": "CUs",
    "CTA": "work group",
    "CTAs": "work groups",
    "warp": "wavefront",
    "warps": "wavefronts",
    "shared memory": "LDS",
    "tensor core": "matrix core",
    "tensor cores": "matrix cores",
    "MUFU": "transcendental instruction",
    "MUFU instruction": "transcendental instruction",
}
"""HIP's, for CUDA's."""

GFX942 = Arch(
    name="gfx942",
    words=WORDS,
    backend="hip",
    number="gfx942",
    gpus="MI300A, MI300X, MI325X",
    warp_size=64,
    sub_partitions=4,
    sm_registers=4 * 512 * 64,  # 512 vector registers of 64 lanes a SIMD, accumulation registers among them
    thread_registers=512,
    register_unit=8 * 64,
    sm_warps=4 * 8,
    sm_ctas=32,
    cta_warps=16,
    sm_shared_bytes=64 * 1024,
    cta_shared_bytes=64 * 1024,
    reserved_shared_bytes=0,
    shared_unit=512,
    shared_bank_bytes=4,
    shared_name="local data share",
    exponentials_per_cycle=16,
    fp32_per_cycle=64,
    shared_bytes_per_cycle=128,
    memory_bytes_per_cycle=8.3,  # AMD CDNA 3 Architecture: 5.3 TB/s
    # AMD CDNA 3 Architecture (white paper, 2023): 1307 TFLOPS of bfloat16 = 304 units * 2048 * 2.1 GHz.
    flop_per_cycle={
        "fp8": 4096,
        "int8": 4096,
        "bf16": 2048,
        "fp16": 2048,
        "tf32": 1024,
        "fp64": 256,
        "fp32": 256,
    },
    operations={
        **TRITON,
        "amdg.buffer_load": "load",
        "amdg.masked_load": "load",
        "amdg.buffer_load_to_local": "copy",
        "amdg.async_wait": "copy wait",
        "amdg.buffer_store": "store",
        "amdg.masked_store": "store",
        "amdg.buffer_atomic_rmw": "atomic",
        "amdg.buffer_atomic_cas": "atomic",
        "amdg.local_load_packed_tranposed": "shared load",  # so spelled by Triton
        "amdg.cond_barrier": "barrier",
    },
    completion=TRITON_COMPLETION,
    # AMD Instinct MI300 Instruction Set Architecture (2025), section 12.
    opcodes=(
        Opcode("v_mfma_", "mma", "MFMA", "always"),
        Opcode("v_smfmac_", "mma", "sparse MFMA", "always"),
        Opcode("buffer_load_dword_lds", "copy", "load to LDS", "always"),
        Opcode("global_load_lds", "copy", "load to LDS", "always"),
        Opcode("buffer_atomic", "atomic", "atomic", "always"),
        Opcode("global_atomic", "atomic", "atomic", "always"),
        Opcode("flat_atomic", "atomic", "atomic", "always"),
        Opcode("scratch_load", "local load", "scratch load", "never"),
        Opcode("scratch_store", "local store", "scratch store", "never"),
        Opcode("buffer_load", "load", "load", "always"),
        Opcode("global_load", "load", "load", "always"),
        Opcode("buffer_store", "store", "store", "always"),
        Opcode("global_store", "store", "store", "always"),
        Opcode("ds_read", "shared load", "LDS read", "always"),
        Opcode("ds_write", "shared store", "LDS write", "always"),
        Opcode("ds_bpermute", "shuffle", "shuffle", "always"),
        Opcode("ds_permute", "shuffle", "shuffle", "always"),
        Opcode("ds_swizzle", "shuffle", "shuffle", "always"),
        Opcode("s_waitcnt", "copy wait", "wait for memory", "never"),
        Opcode("s_barrier", "barrier", "barrier", "always"),
        Opcode("v_exp_", "exp2", "exp2", "always"),
        Opcode("v_rcp_", "special function", "special function", "never"),
        Opcode("v_rsq_", "special function", "special function", "never"),
        Opcode("v_sqrt_", "special function", "special function", "never"),
        Opcode("v_log_", "special function", "special function", "never"),
        Opcode("v_accvgpr_read", "conversion", "accumulator read", "never"),
        Opcode("v_accvgpr_write", "conversion", "accumulator write", "never"),
        Opcode("v_cvt_", "conversion", "conversion", "never"),
    ),
)
