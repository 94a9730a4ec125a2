"""The paper's vanilla schedule: each consumer runs QK, softmax and PV of one block in order.

The tensor cores of an SM rest whenever both consumers are in their softmax at once.
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
def attend(i, W: gl.constexpr, q, smem, s_zero, acc, m_i, l_i, qk_scale, STAGES: gl.constexpr, MASK: gl.constexpr):
    """Trip i, in order: QK, softmax and PV of one block; returns the new acc, m_i and l_i."""
    q_smem, k_smem, v_smem, q_full, k_full, k_empty, v_full, v_empty = smem
    P_LAYOUT: gl.constexpr = gl.DotOperandLayout(0, acc.type.layout, 2)
    stage, phase = ring(i, STAGES)
    mbarrier.wait(k_full.index(stage), phase)
    s = warpgroup_mma(q, k_smem.index(stage).permute((1, 0)), s_zero, use_acc=False, is_async=True)
    s = warpgroup_mma_wait(0, deps=[s])
    mbarrier.arrive(k_empty.index(stage), count=1)

    if MASK:
        s = mask_diagonal(s, W * CONSUMER_ROWS)
    p, alpha, m_i, l_i = online_softmax(s, m_i, l_i, qk_scale)
    acc = rescale(acc, alpha)
    p = gl.convert_layout(p.to(v_smem.dtype), P_LAYOUT)

    mbarrier.wait(v_full.index(stage), phase)
    acc = warpgroup_mma(p, v_smem.index(stage), acc, is_async=True)
    acc = warpgroup_mma_wait(0, deps=[acc])
    mbarrier.arrive(v_empty.index(stage), count=1)
    return acc, m_i, l_i


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
    ROW_LAYOUT: gl.constexpr = gl.SliceLayout(1, S_LAYOUT)
    s_zero = gl.zeros([CONSUMER_ROWS, BLOCK_N], gl.float32, S_LAYOUT)
    m_i = gl.full([CONSUMER_ROWS], float("-inf"), gl.float32, ROW_LAYOUT)
    l_i = gl.full([CONSUMER_ROWS], 0.0, gl.float32, ROW_LAYOUT)
    acc = gl.zeros([CONSUMER_ROWS, HEAD_DIM], gl.float32, O_LAYOUT)

    q = q_smem.index(W)
    mbarrier.wait(q_full.index(W), 0)
    first_full = 0
    if CAUSAL:  # the diagonal block comes first, apart: the loop has no mask
        acc, m_i, l_i = attend(0, W, q, smem, s_zero, acc, m_i, l_i, qk_scale, STAGES, True)
        first_full = 1
    for i in range(first_full, n_blocks):
        acc, m_i, l_i = attend(i, W, q, smem, s_zero, acc, m_i, l_i, qk_scale, STAGES, False)
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
