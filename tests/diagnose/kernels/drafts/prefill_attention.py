"""Causal flash-attention forward for prefill, with block pointers."""

import torch
import triton
import triton.language as tl


@triton.jit
def attn_fwd(Q, K, V, O, sm_scale, stride_h, stride_s, S, D: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    start_m = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * stride_h
    q_ptr = tl.make_block_ptr(Q + base, (S, D), (stride_s, 1), (start_m * BM, 0), (BM, D), (1, 0))
    k_ptr = tl.make_block_ptr(K + base, (D, S), (1, stride_s), (0, 0), (D, BN), (0, 1))
    v_ptr = tl.make_block_ptr(V + base, (S, D), (stride_s, 1), (0, 0), (BN, D), (1, 0))
    o_ptr = tl.make_block_ptr(O + base, (S, D), (stride_s, 1), (start_m * BM, 0), (BM, D), (1, 0))
    rm = start_m * BM + tl.arange(0, BM)
    rn = tl.arange(0, BN)
    m_i = tl.full((BM,), -1e30, tl.float32)
    l_i = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    q = tl.load(q_ptr)
    scale = sm_scale * 1.44269504
    for n in range(0, S, BN):  # planted: masked-tiles
        k = tl.load(k_ptr)
        s = tl.dot(q, k) * scale
        s = tl.where(rm[:, None] >= n + rn[None, :], s, -1e30)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.math.exp2(s - m_new[:, None])
        alpha = tl.math.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        v = tl.load(v_ptr)
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_new
        k_ptr = tl.advance(k_ptr, (0, BN))
        v_ptr = tl.advance(v_ptr, (BN, 0))
    acc = acc / l_i[:, None]
    tl.store(o_ptr, acc.to(O.dtype.element_ty))


torch.manual_seed(0)
BATCH, HEADS, S, D = 1, 32, 4096, 128
q = torch.randn(BATCH, HEADS, S, D, device="cuda", dtype=torch.bfloat16)
k = torch.randn(BATCH, HEADS, S, D, device="cuda", dtype=torch.bfloat16)
v = torch.randn(BATCH, HEADS, S, D, device="cuda", dtype=torch.bfloat16)
o = torch.empty_like(q)
attn_fwd[(triton.cdiv(S, 128), BATCH * HEADS)](
    q, k, v, o, D**-0.5, q.stride(1), q.stride(2), S, D=D, BM=128, BN=64, num_warps=8, num_stages=3
)
ref = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.testing.assert_close(o, ref, rtol=2e-2, atol=2e-2)
