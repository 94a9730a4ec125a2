"""Causal attention in which a query sees its last 512 keys only.

Fault: the first loop starts at key 0, so the keys to the left of the window are loaded, multiplied and then masked
away to the last one. A query block needs 640 keys; at 8192 tokens it visits 4224 on average, all at the cost of two
matrix products each, so that about six sevenths of the time goes into zeros.
Fix: start the first loop at the block that holds the oldest key any query of the block can see.
"""

import torch
import triton
import triton.language as tl

B = 2
HEADS = 16
SEQ = 8192
D = 128
WINDOW = 512


@triton.jit
def visit(
    acc,
    l,
    m,
    q,
    k_ptrs,
    v_ptrs,
    lo,
    hi,
    rm,
    scale,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_N: tl.constexpr,
    MASKED: tl.constexpr,
):
    for start in range(lo, hi, BLOCK_N):  # planted: masked-tiles
        k = tl.load(k_ptrs + start * D)
        s = tl.dot(q, k) * scale
        if MASKED:
            gap = rm[:, None] - (start + tl.arange(0, BLOCK_N))[None, :]
            s = tl.where((gap >= 0) & (gap < WINDOW), s, -1.0e30)
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(s - m_new[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        v = tl.load(v_ptrs + start * D)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m = m_new
    return acc, l, m


@triton.jit
def window_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    o_ptr,
    scale,
    SEQ,
    D: tl.constexpr,
    WINDOW: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    first = tl.program_id(0) * BLOCK_M
    base = tl.program_id(1) * SEQ * D
    rm = first + tl.arange(0, BLOCK_M)
    rn = tl.arange(0, BLOCK_N)
    rd = tl.arange(0, D)
    q = tl.load(q_ptr + base + rm[:, None] * D + rd[None, :])
    k_ptrs = k_ptr + base + rn[None, :] * D + rd[:, None]
    v_ptrs = v_ptr + base + rn[:, None] * D + rd[None, :]
    m = tl.full((BLOCK_M,), -1.0e30, tl.float32)
    l = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, D), tl.float32)
    # left of `inner` the window cuts some rows short; from `first` on the diagonal does
    inner = tl.maximum(first + BLOCK_M - WINDOW, 0)
    acc, l, m = visit(acc, l, m, q, k_ptrs, v_ptrs, 0, inner, rm, scale, D, WINDOW, BLOCK_N, True)
    acc, l, m = visit(acc, l, m, q, k_ptrs, v_ptrs, inner, first, rm, scale, D, WINDOW, BLOCK_N, False)
    acc, l, m = visit(acc, l, m, q, k_ptrs, v_ptrs, first, first + BLOCK_M, rm, scale, D, WINDOW, BLOCK_N, True)
    tl.store(o_ptr + base + rm[:, None] * D + rd[None, :], (acc / l[:, None]).to(o_ptr.dtype.element_ty))


torch.manual_seed(0)
q = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
k = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
v = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
o = torch.empty_like(q)

window_attention[(SEQ // 128, B * HEADS)](
    q,
    k,
    v,
    o,
    D**-0.5 * 1.4426950408889634,
    SEQ,
    D=D,
    WINDOW=WINDOW,
    BLOCK_M=128,
    BLOCK_N=64,
    num_warps=8,
    num_stages=3,
)

pos = torch.arange(SEQ, device="cuda")
gap = pos[:, None] - pos[None, :]
seen = (gap >= 0) & (gap < WINDOW)
for b, h in ((0, 0), (B - 1, HEADS - 1)):
    s = (q[b, h].float() @ k[b, h].float().T * D**-0.5).masked_fill(~seen, -float("inf"))
    torch.testing.assert_close(o[b, h].float(), torch.softmax(s, dim=-1) @ v[b, h].float(), rtol=2e-2, atol=5e-3)
