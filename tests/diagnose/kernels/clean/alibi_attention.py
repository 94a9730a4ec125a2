"""Causal attention forward with ALiBi biases computed from the positions, fp16 with fp32 softmax state.
Blocks left of the diagonal run without a mask; only the diagonal part pays for it."""

import torch
import triton
import triton.language as tl

B, HEADS, SEQ, D = 2, 16, 4096, 128


@triton.jit
def attend(
    acc, l, m, q, k_ptrs, v_ptrs, lo, hi, rm, slope, scale, D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr
):
    for start in range(lo, hi, BLOCK_N):
        rn = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptrs + start * D)
        s = tl.dot(q, k) * scale + slope * rn[None, :].to(tl.float32)
        if MASKED:
            s = tl.where(rm[:, None] >= rn[None, :], s, -float("inf"))
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(s - m_new[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        v = tl.load(v_ptrs + start * D)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m = m_new
    return acc, l, m


@triton.jit
def alibi_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    slope_ptr,
    o_ptr,
    scale,
    SEQ,
    HEADS,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    bh = tl.program_id(1)
    base = bh * SEQ * D
    rm = block * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.arange(0, BLOCK_N)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + base + rm[:, None] * D + rd[None, :])
    k_ptrs = k_ptr + base + rn[None, :] * D + rd[:, None]
    v_ptrs = v_ptr + base + rn[:, None] * D + rd[None, :]
    slope = tl.load(slope_ptr + bh % HEADS) * 1.4426950408889634
    m = tl.full((BLOCK_M,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    diag = block * BLOCK_M
    acc, l, m = attend(acc, l, m, q, k_ptrs, v_ptrs, 0, diag, rm, slope, scale, D, BLOCK_N, False)
    acc, l, m = attend(acc, l, m, q, k_ptrs, v_ptrs, diag, diag + BLOCK_M, rm, slope, scale, D, BLOCK_N, True)
    tl.store(o_ptr + base + rm[:, None] * D + rd[None, :], (acc / l[:, None]).to(tl.float16))


torch.manual_seed(0)
q = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.float16)
k = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.float16)
v = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.float16)
slopes = torch.exp2(-8.0 * (torch.arange(HEADS, device="cuda") + 1) / HEADS)
o = torch.empty_like(q)

alibi_kernel[(SEQ // 128, B * HEADS)](
    q, k, v, slopes, o, D**-0.5 * 1.4426950408889634, SEQ, HEADS, D, BLOCK_M=128, BLOCK_N=64, num_warps=8, num_stages=3
)

pos = torch.arange(SEQ, device="cuda")
for h in range(0, HEADS, max(HEADS // 4, 1)):
    s = q[0, h].float() @ k[0, h].float().T * D**-0.5 - slopes[h] * (pos[:, None] - pos[None, :])
    s = s.masked_fill(pos[:, None] < pos[None, :], -float("inf"))
    torch.testing.assert_close(o[0, h].float(), torch.softmax(s, dim=-1) @ v[0, h].float(), rtol=1e-2, atol=1e-2)
