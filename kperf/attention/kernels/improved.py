"""The paper's improved schedule: QK of the next block is issued before PV of this one, and both are in flight together.

So a consumer waits for the tensor cores once a trip instead of twice, and its softmax meets the other consumer's
products; K and V are released as soon as their own product is done; the last PV is peeled off the loop.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma, warpgroup_mma_wait

from kperf.attention.kernels.warp_specialized import (
    CONSUMER_REGISTERS,
    CONSUMER_ROWS,
    LOG2_E,
    PRODUCER_REGISTERS,
    allocate,
    mask_diagonal,
    online_softmax,
    producer,
    rescale,
    ring,
    store_output,
    tile_at,
)


@gluon.jit
def consumer(
    W: gl.constexpr, o_desc, lse_ptr, smem, q_row, n_blocks, qk_scale, STAGES: gl.constexpr, CAUSAL: gl.constexpr
):
    """Consumer W: rows q_row + W * 64 .. + 64 of o and lse."""
    q_smem, k_smem, v_smem, q_full, k_full, k_empty, v_full, v_empty = smem
    BLOCK_N: gl.constexpr = k_smem.shape[1]
    HEAD_DIM: gl.constexpr = k_smem.shape[2]
    S_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    O_LAYOUT: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HEAD_DIM, 16])
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, O_LAYOUT, 2)
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    m_i = gl.full([CONSUMER_ROWS], float("-inf"), gl.float32, ROW_LAYOUT)
    l_i = gl.full([CONSUMER_ROWS], 0.0, gl.float32, ROW_LAYOUT)
    acc = gl.zeros([CONSUMER_ROWS, HEAD_DIM], gl.float32, O_LAYOUT)

    q = q_smem.index(W)
    mbarrier.wait(q_full.index(W), 0)

    # Prologue: QK and softmax of the first block, which is the diagonal one if causal.
    mbarrier.wait(k_full.index(0), 0)
    s = warpgroup_mma(q, k_smem.index(0).permute((1, 0)), s_zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(0), count=1)
    if CAUSAL:
        s = mask_diagonal(s, W * CONSUMER_ROWS)
    p, alpha, m_i, l_i = online_softmax(s, m_i, l_i, qk_scale)
    p = gl.convert_layout(p.to(v_smem.dtype), P_LAYOUT)

    # Trip i: QK of block i and PV of block i - 1 in flight together, then the softmax of block i.
    for i in range(1, n_blocks):
        stage, phase = ring(i, STAGES)
        v_stage, v_phase = ring(i - 1, STAGES)
        mbarrier.wait(k_full.index(stage), phase)
        s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
        acc = rescale(acc, alpha)  # of the last softmax; here it runs while the tensor cores are on QK
        mbarrier.wait(v_full.index(v_stage), v_phase)
        acc = warpgroup_mma(p, v_smem.index(v_stage), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
        mbarrier.arrive(k_empty.index(stage), count=1)
        # ptxas puts PV's wait before the softmax wherever it stands here; written there, V is released early and an
        # instrumented kernel keeps the order of the plain one.
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        mbarrier.arrive(v_empty.index(v_stage), count=1)

        p, alpha, m_i, l_i = online_softmax(s, m_i, l_i, qk_scale)
        p = gl.convert_layout(p.to(v_smem.dtype), P_LAYOUT)

    # The last iteration, peeled: PV of the last block, with no QK beside it.
    acc = rescale(acc, alpha)
    v_stage, v_phase = ring(n_blocks - 1, STAGES)
    mbarrier.wait(v_full.index(v_stage), v_phase)
    acc = warpgroup_mma(p, v_smem.index(v_stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    store_output(acc, m_i, l_i, o_desc, lse_ptr, q, q_row + W * CONSUMER_ROWS)


@gluon.jit
def attn_fwd(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    sm_scale,
    seq_len,
    n_rows,
    STAGES: gl.constexpr,
    CAUSAL: gl.constexpr,
):
    """The override of `kperf.kernels.attn_fwd.attn_fwd`: the same arguments, one block a tile of 128 rows.

    Three warp groups: consumer 0 (the default partition, which gets the registers that are left), consumer 1, producer.
    """
    KV_ROW_BYTES: gl.constexpr = 2 * k_desc.block_type.nbytes // k_desc.block_type.shape[0]
    q_row, kv_row, n_blocks = tile_at(gl.program_id(0), seq_len, n_rows, KV_ROW_BYTES, CAUSAL)
    qk_scale = sm_scale * LOG2_E
    smem = allocate(q_desc, k_desc, v_desc, STAGES)
    gl.warp_specialize(
        [
            (consumer, (0, o_desc, lse_ptr, smem, q_row, n_blocks, qk_scale, STAGES, CAUSAL)),
            (consumer, (1, o_desc, lse_ptr, smem, q_row, n_blocks, qk_scale, STAGES, CAUSAL)),
            (producer, (q_desc, k_desc, v_desc, smem, q_row, kv_row, n_blocks, STAGES, CAUSAL)),
        ],
        [4, 1],
        [CONSUMER_REGISTERS, PRODUCER_REGISTERS],
    )
