"""Causal attention whose loop ends with the last key that the rows of the CTA see."""

import torch
import triton
import triton.language as tl


@triton.jit
def attention(q, k, v, out, scale, stride_head, stride_row, n, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    head = tl.program_id(1) * stride_head
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    dims = tl.arange(0, D)
    queries = tl.load(q + head + rows[:, None] * stride_row + dims[None, :])
    most = tl.full((BM,), -float("inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    acc = tl.zeros((BM, D), tl.float32)
    for start in range(0, tl.minimum(n, (tl.program_id(0) + 1) * BM), BN):
        cols = start + tl.arange(0, BN)
        keys = tl.load(k + head + cols[None, :] * stride_row + dims[:, None])
        s = tl.dot(queries, keys) * scale
        s = tl.where(rows[:, None] >= cols[None, :], s, -float("inf"))
        new = tl.maximum(most, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        alpha = tl.exp2(most - new)
        total = total * alpha + tl.sum(p, 1)
        values = tl.load(v + head + cols[:, None] * stride_row + dims[None, :])
        acc = tl.dot(p.to(tl.bfloat16), values, acc * alpha[:, None])
        most = new
    tl.store(out + head + rows[:, None] * stride_row + dims[None, :], (acc / total[:, None]).to(tl.bfloat16))


heads, n, d = 64, 4096, 64
q, k, v = (torch.randn(1, heads, n, d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
out = torch.empty_like(q)
attention[(n // 128, heads)](q, k, v, out, d**-0.5 * 1.44269504, n * d, d, n, 128, 64, d, num_warps=4, num_stages=3)
expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
torch.testing.assert_close(out, expected, rtol=0.02, atol=0.02)
