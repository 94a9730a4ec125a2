"""What NVIDIA's architectures from Ampere on have in common."""

from kperf.arch.arch import Completion, Opcode, OperationKind

TRITON: dict[str, OperationKind] = {
    "tt.dot": "mma",
    "tt.dot_scaled": "mma",
    "tt.load": "load",
    "tt.descriptor_load": "load",
    "tt.descriptor_gather": "load",
    "tt.store": "store",
    "tt.descriptor_store": "store",
    "tt.descriptor_scatter": "store",
    "tt.descriptor_reduce": "store",
    "tt.atomic_rmw": "atomic",
    "tt.atomic_cas": "atomic",
    "ttg.async_copy_global_to_local": "copy",
    "ttg.async_wait": "copy wait",
    "ttg.local_load": "shared load",
    "ttg.local_store": "shared store",
    "ttg.convert_layout": "conversion",
    "ttg.barrier": "barrier",
    "ttg.local_barrier": "barrier",
    "gpu.barrier": "barrier",
}
"""Operations of the dialects `tt` and `ttg`, which are every architecture's."""

TRITON_COMPLETION: dict[str, Completion] = {"tt.dot": "sync", "tt.dot_scaled": "sync"}

MBARRIER: dict[str, OperationKind] = {
    "ttng.wait_barrier": "barrier wait",
    "ttng.arrive_barrier": "barrier arrive",
    "ttng.async_copy_mbarrier_arrive": "barrier arrive",
}
"""Barriers in shared memory, from Ampere on; Triton uses them from Hopper on."""

TMA: dict[str, OperationKind] = {
    "ttng.async_tma_copy_global_to_local": "copy",
    "ttng.async_tma_gather": "copy",
    "ttng.async_tma_copy_local_to_global": "store",
    "ttng.async_tma_scatter": "store",
    "ttng.async_tma_reduce": "store",
}
"""The tensor memory accelerator, from Hopper on."""

SASS = (
    Opcode("HMMA", "mma", "mma.sync", "always"),
    Opcode("IMMA", "mma", "int8 mma.sync", "always"),
    Opcode("QMMA", "mma", "fp8 mma.sync", "always"),
    Opcode("OMMA", "mma", "fp4 mma.sync", "always"),
    Opcode("DMMA", "mma", "fp64 mma.sync", "always"),
    Opcode("LDGSTS", "copy", "cp.async", "always"),
    Opcode("LDGDEPBAR", "copy", "cp.async group", "always"),
    Opcode("DEPBAR.LE", "copy wait", "wait for cp.async", "always"),
    Opcode("ATOMS", "atomic", "shared atomic", "never"),
    Opcode("ATOM", "atomic", "atomic", "always"),
    Opcode("REDUX", "shuffle", "warp reduce", "always"),
    Opcode("RED", "atomic", "atomic", "always"),
    Opcode("MUFU.EX2", "exp2", "exp2", "always"),
    Opcode("SYNCS.PHASECHK", "mbarrier", "mbarrier wait", "always"),
    Opcode("SYNCS.ARRIVE.TRANS64.A", "mbarrier", "mbarrier arrive", "always"),
    Opcode("LDG", "load", "load", "without asynchronous MMA"),
    Opcode("LDSM", "shared load", "ldmatrix", "without asynchronous MMA"),
    Opcode("LDS", "shared load", "shared load", "without asynchronous MMA"),
    Opcode("STG", "store", "store", "without asynchronous MMA"),
    Opcode("STSM", "shared store", "stmatrix", "without asynchronous MMA"),
    Opcode("STS", "shared store", "shared store", "without asynchronous MMA"),
    Opcode("BAR", "barrier", "barrier", "without asynchronous MMA"),
    Opcode("SHFL", "shuffle", "shuffle", "without asynchronous MMA"),
    Opcode("MUFU", "special function", "special function", "without asynchronous MMA"),
    Opcode("LDL", "local load", "local load", "never"),
    Opcode("STL", "local store", "local store", "never"),
    Opcode("F2F", "conversion", "conversion", "never"),
    Opcode("F2I", "conversion", "conversion", "never"),
    Opcode("I2F", "conversion", "conversion", "never"),
    Opcode("I2I", "conversion", "conversion", "never"),
)
"""Machine code of all of them (CUDA Binary Utilities, "Instruction Set Reference")."""

TMA_SASS = (
    Opcode("UTMALDG", "copy", "TMA load", "always"),
    Opcode("UTMASTG", "store", "TMA store", "always"),
    Opcode("UTMAREDG", "store", "TMA reduce", "always"),
)
