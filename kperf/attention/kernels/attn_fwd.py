"""The plain forward kernel whose TTGIR the overrides replace.

It is right and simple rather than fast: what matters is its signature, which every override shares. All tensors are
[batch * heads * seq_len, head_dim] behind host-made descriptors whose boxes fit the overrides (64 rows of q and o for
each consumer warp group, 128 rows of k and v), and the tiles are a loop from program_id in steps of num_programs, so
that an override may be persistent.
"""

import triton
import triton.language as tl

Q_BOX_ROWS = 64
KV_BOX_ROWS = 128

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)


# Nothing is specialised on a value or an alignment: one signature, and so one override, serves every shape.
@triton.jit(do_not_specialize=["lse_ptr", "seq_len", "n_rows"])
def attn_fwd(
    q_desc,
    k_desc,
    v_desc,
    o_desc,
    lse_ptr,
    sm_scale,
    seq_len,
    n_rows,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
    DOT_DTYPE: tl.constexpr,
):
    """o = softmax(q k^T * sm_scale) v and lse = log(sum(exp(q k^T * sm_scale))), one row of q at a time.

    q_desc, o_desc: boxes [BLOCK_M, HEAD_DIM]; k_desc, v_desc: boxes [BLOCK_N, HEAD_DIM]; lse_ptr: float32 [n_rows].
    DOT_DTYPE is the operands' type, or float32 in the interpreter, whose native bfloat16 dot is wrong.
    """
    qk_scale = sm_scale * LOG2_E
    tiles_per_head = seq_len // BLOCK_M
    for tile in tl.range(tl.program_id(0), n_rows // BLOCK_M, tl.num_programs(0)):
        row_in_head = (tile % tiles_per_head) * BLOCK_M
        kv_row = (tile // tiles_per_head) * seq_len
        rows = row_in_head + tl.arange(0, BLOCK_M)

        q = q_desc.load([tile * BLOCK_M, 0]).to(DOT_DTYPE)
        m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)  # running row maximum, in units of log2
        l_i = tl.zeros([BLOCK_M], tl.float32)
        acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

        # A causal tile ends with the block that holds its last diagonal element.
        kv_end = tl.cdiv(row_in_head + BLOCK_M, BLOCK_N) * BLOCK_N if CAUSAL else seq_len
        for start in tl.range(0, kv_end, BLOCK_N):
            k = k_desc.load([kv_row + start, 0]).to(DOT_DTYPE)
            s = tl.dot(q, k.T) * qk_scale
            if CAUSAL:
                cols = start + tl.arange(0, BLOCK_N)
                s = tl.where(rows[:, None] >= cols[None, :], s, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(s, 1))
            p = tl.exp2(s - m_new[:, None])
            alpha = tl.exp2(m_i - m_new)
            l_i = l_i * alpha + tl.sum(p, 1)
            v = v_desc.load([kv_row + start, 0])
            # p is rounded to v's type whatever the dot runs in, as on the tensor cores.
            acc = tl.dot(p.to(v.dtype).to(DOT_DTYPE), v.to(DOT_DTYPE), acc * alpha[:, None])
            m_i = m_new

        o_desc.store([tile * BLOCK_M, 0], (acc / l_i[:, None]).to(o_desc.dtype))
        tl.store(lse_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M), (m_i + tl.log2(l_i)) * LN_2)
