"""Attention of a vision encoder: 16 heads of 80 columns, 4096 patches, every patch sees every other."""

import torch
import triton
import triton.language as tl

HEADS = 16
TOKENS = 4096
DIM = 80


@triton.jit
def vit_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, tokens, scale, DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    base = tl.program_id(1) * tokens * DIM
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    # 80 columns are 64 and 16
    low = tl.arange(0, 64)
    high = 64 + tl.arange(0, 16)
    q_low = tl.load(q_ptr + base + rm[:, None] * DIM + low[None, :])
    q_high = tl.load(q_ptr + base + rm[:, None] * DIM + high[None, :])
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    acc_low = tl.zeros((BLOCK_M, 64), tl.float32)
    acc_high = tl.zeros((BLOCK_M, 16), tl.float32)
    for start in range(0, tokens, BLOCK_N):
        rn = (start + tl.arange(0, BLOCK_N))[:, None] * DIM
        s = tl.dot(q_low, tl.trans(tl.load(k_ptr + base + rn + low[None, :])))
        s = tl.dot(q_high, tl.trans(tl.load(k_ptr + base + rn + high[None, :])), s) * scale
        new_top = tl.maximum(top, tl.max(s, axis=1))
        shrink = tl.exp2(top - new_top)
        p = tl.exp2(s - new_top[:, None])
        total = total * shrink + tl.sum(p, axis=1)
        p = p.to(tl.bfloat16)
        acc_low = tl.dot(p, tl.load(v_ptr + base + rn + low[None, :]), acc_low * shrink[:, None])
        acc_high = tl.dot(p, tl.load(v_ptr + base + rn + high[None, :]), acc_high * shrink[:, None])
        top = new_top
    at = out_ptr + base + rm[:, None] * DIM
    tl.store(at + low[None, :], (acc_low / total[:, None]).to(tl.bfloat16))
    tl.store(at + high[None, :], (acc_high / total[:, None]).to(tl.bfloat16))


torch.manual_seed(0)
q, k, v = (torch.randn(HEADS, TOKENS, DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
out = torch.empty_like(q)

vit_attention[(TOKENS // 128, HEADS)](
    q, k, v, out, TOKENS, DIM**-0.5 * 1.4426950408889634, DIM=DIM, BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3
)

want = torch.softmax(q.float() @ k.float().transpose(1, 2) * DIM**-0.5, dim=-1) @ v.float()
torch.testing.assert_close(out.float(), want, rtol=2e-2, atol=1e-2)
