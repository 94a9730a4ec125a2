"""Attention with an online softmax."""

import torch
import triton
import triton.language as tl


@triton.jit
def attention(q, k, v, o, scale, seq, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    start, head = tl.program_id(0) * BM, tl.program_id(1) * seq * D
    rm, rd, rn = start + tl.arange(0, BM), tl.arange(0, D), tl.arange(0, BN)
    tile = tl.load(q + head + rm[:, None] * D + rd[None, :])
    k_ptrs = k + head + rn[:, None] * D + rd[None, :]
    v_ptrs = v + head + rn[:, None] * D + rd[None, :]
    m_i = tl.full((BM,), float("-inf"), tl.float32)
    l_i = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    qk_scale = scale * 1.44269504
    for n in range(0, seq, BN):
        s = tl.dot(tile, tl.load(k_ptrs).T) * qk_scale
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = tl.dot(p.to(tl.bfloat16), tl.load(v_ptrs), acc * alpha[:, None])
        m_i = m_new
        k_ptrs += BN * D
        v_ptrs += BN * D
    tl.store(o + head + rm[:, None] * D + rd[None, :], (acc / l_i[:, None]).to(tl.bfloat16))


q, k, v = torch.randn(3, 4, 16, 4096, 64, device="cuda", dtype=torch.bfloat16).unbind(0)
o = torch.empty_like(q)
attention[(4096 // 128, 64)](q, k, v, o, 0.1, 4096, 128, 64, 64, num_warps=8, num_stages=3)
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=0.1)
torch.testing.assert_close(o, expected, rtol=0.02, atol=0.02)
