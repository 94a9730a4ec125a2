"""A Gluon GEMM that waits for the product of the iteration before."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma, warpgroup_mma, warpgroup_mma_wait
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

# Its name from Triton 3.9 on, and the one until 3.8.
tma_load = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def load_tile(a_desc, b_desc, a_tiles, b_tiles, full, i, row, col, STAGES: gl.constexpr, pred):
    stage = i % STAGES
    depth: gl.constexpr = a_desc.block_type.shape[1]
    mbarrier.expect(full.index(stage), a_desc.block_type.nbytes + b_desc.block_type.nbytes, pred=pred)
    tma_load(a_desc, [row, i * depth], full.index(stage), a_tiles.index(stage), pred=pred)
    tma_load(b_desc, [i * depth, col], full.index(stage), b_tiles.index(stage), pred=pred)


@gluon.jit
def gemm(a_desc, b_desc, c, N, K, STAGES: gl.constexpr):
    BM: gl.constexpr = a_desc.block_type.shape[0]
    BK: gl.constexpr = a_desc.block_type.shape[1]
    BN: gl.constexpr = b_desc.block_type.shape[1]
    sums: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    a_tiles = gl.allocate_shared_memory(a_desc.dtype, [STAGES, BM, BK], a_desc.layout)
    b_tiles = gl.allocate_shared_memory(b_desc.dtype, [STAGES, BK, BN], b_desc.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for stage in gl.static_range(STAGES):
        mbarrier.init(full.index(stage), count=1)
    row, col = gl.program_id(0) * BM, gl.program_id(1) * BN
    for i in gl.static_range(STAGES - 1):
        load_tile(a_desc, b_desc, a_tiles, b_tiles, full, i, row, col, STAGES, True)
    acc = gl.zeros([BM, BN], gl.float32, sums)
    for i in range(K // BK):
        mbarrier.wait(full.index(i % STAGES), i // STAGES & 1)
        acc = warpgroup_mma(a_tiles.index(i % STAGES), b_tiles.index(i % STAGES), acc, is_async=True)
        acc = warpgroup_mma_wait(1, deps=(acc,))  # frees the stage of the iteration before
        ahead = i + STAGES - 1
        load_tile(a_desc, b_desc, a_tiles, b_tiles, full, ahead, row, col, STAGES, ahead < K // BK)
    acc = warpgroup_mma_wait(0, deps=(acc,))
    rows = row + gl.arange(0, BM, gl.SliceLayout(1, sums))
    cols = col + gl.arange(0, BN, gl.SliceLayout(0, sums))
    gl.store(c + gl.expand_dims(rows * N, 1) + gl.expand_dims(cols, 0), acc.to(gl.bfloat16))


a, b = torch.randn(2, 4096, 4096, device="cuda").bfloat16()
layouts = [gl.NVMMASharedLayout.get_default_for(tile, gl.bfloat16) for tile in ([64, 64], [64, 128])]
a_desc = TensorDescriptor.from_tensor(a, [64, 64], layouts[0])
b_desc = TensorDescriptor.from_tensor(b, [64, 128], layouts[1])
c = torch.empty_like(a)
gemm[(64, 32)](a_desc, b_desc, c, 4096, 4096, STAGES=4, num_warps=4)
torch.testing.assert_close(c, a @ b, rtol=0.02, atol=1)
