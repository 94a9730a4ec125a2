"""GEMM in Gluon, warp-specialised by hand: one warp loads by TMA, two warp groups of four issue the products."""

import argparse

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Its name from Triton 3.9 on, and the one until 3.8.
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def load_tiles(a_desc, b_desc, a_smem, b_smem, full, empty, row, col, K, STAGES: gl.constexpr):
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    HALF: gl.constexpr = a_desc.block_type.shape[0]
    for i in range(K // BLOCK_K):
        stage = i % STAGES
        mbarrier.wait(empty.index(stage), (i // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(stage), 2 * a_desc.block_type.nbytes + b_desc.block_type.nbytes)
        for half in gl.static_range(2):
            a_half = a_smem.index(2 * stage + half)
            tma_load(a_desc, [row + half * HALF, i * BLOCK_K], full.index(stage), a_half)
        tma_load(b_desc, [i * BLOCK_K, col], full.index(stage), b_smem.index(stage))


@gluon.jit
def multiply(HALF: gl.constexpr, c_ptr, a_smem, b_smem, full, empty, row, col, N, K, STAGES: gl.constexpr):
    ROWS: gl.constexpr = a_smem.shape[1]
    BLOCK_K: gl.constexpr = a_smem.shape[2]
    BLOCK_N: gl.constexpr = b_smem.shape[2]
    LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    acc = gl.zeros([ROWS, BLOCK_N], gl.float32, LAYOUT)
    for i in range(K // BLOCK_K):
        stage = i % STAGES
        mbarrier.wait(full.index(stage), i // STAGES & 1)
        acc = warpgroup_mma(a_smem.index(2 * stage + HALF), b_smem.index(stage), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(stage), count=1)
    rows = row + HALF * ROWS + gl.arange(0, ROWS, gl.SliceLayout(1, LAYOUT))
    cols = col + gl.arange(0, BLOCK_N, gl.SliceLayout(0, LAYOUT))
    gl.store(c_ptr + gl.expand_dims(rows * N, 1) + gl.expand_dims(cols, 0), acc.to(c_ptr.dtype.element_ty))


@gluon.jit
def gemm_gluon(a_desc, b_desc, c_ptr, N, K, STAGES: gl.constexpr):
    ROWS: gl.constexpr = a_desc.block_type.shape[0]
    BLOCK_K: gl.constexpr = a_desc.block_type.shape[1]
    BLOCK_N: gl.constexpr = b_desc.block_type.shape[1]
    n_tiles = N // BLOCK_N
    row = gl.program_id(0) // n_tiles * (2 * ROWS)
    col = gl.program_id(0) % n_tiles * BLOCK_N
    a_smem = gl.allocate_shared_memory(a_desc.dtype, [2 * STAGES, ROWS, BLOCK_K], a_desc.layout)
    b_smem = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BLOCK_K, BLOCK_N], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
        mbarrier.init(empty.index(stage), count=2)
    gl.warp_specialize(
        [
            (multiply, (0, c_ptr, a_smem, b_smem, full, empty, row, col, N, K, STAGES)),
            (multiply, (1, c_ptr, a_smem, b_smem, full, empty, row, col, N, K, STAGES)),
            (load_tiles, (a_desc, b_desc, a_smem, b_smem, full, empty, row, col, K, STAGES)),
        ],
        [4, 1],
        [232, 24],
    )


def gemm(a, b):
    """a [M, K] @ b [K, N]; M in tiles of 128, N of 256, K of 64."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    a_layout = gl.NVMMASharedLayout.get_default_for([64, 64], gl.bfloat16)
    b_layout = gl.NVMMASharedLayout.get_default_for([64, 256], gl.bfloat16)
    a_desc = TensorDescriptor.from_tensor(a, [64, 64], a_layout)
    b_desc = TensorDescriptor.from_tensor(b, [64, 256], b_layout)
    gemm_gluon[(m // 128 * (n // 256),)](a_desc, b_desc, c, n, k, STAGES=4, num_warps=4)
    return c


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=8192)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.randn(2, args.size, args.size, device=device).bfloat16()
    reference = a.float() @ b.float()
    error = (gemm(a, b).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: gemm(a, b))
    print(f"Gluon GEMM {args.size}^3: error {error:.1e}, {ms:.3f} ms, {2 * args.size**3 / ms / 1e9:.0f} TFLOPS")
