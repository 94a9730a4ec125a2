"""Attention backward, the dK/dV half: one program per key block, a loop over the query blocks.
Fault: the dV product is done on fp32 operands with input_precision="ieee", for which there are no tensor cores: that
one dot runs as scalar FMAs and takes longer than all the rest. Fix: round P to the 16-bit type of dO, which is what
the forward pass did, and let the MMA accumulate in fp32."""

import torch
import triton
import triton.language as tl

BH, SEQ, D = 32, 2048, 64


@triton.jit
def dkdv_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    do_ptr,
    lse_ptr,
    delta_ptr,
    dk_ptr,
    dv_ptr,
    scale,
    SEQ,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    start_n = tl.program_id(0) * BLOCK_N
    bh = tl.program_id(1)
    base = bh * SEQ * D
    rn = start_n + tl.arange(0, BLOCK_N)
    rd = tl.arange(0, D)
    kv_off = base + rn[:, None] * D + rd[None, :]
    k = tl.load(k_ptr + kv_off)
    v = tl.load(v_ptr + kv_off)
    dk = tl.zeros((BLOCK_N, D), tl.float32)
    dv = tl.zeros((BLOCK_N, D), tl.float32)
    for start_m in range(0, SEQ, BLOCK_M):
        rm = start_m + tl.arange(0, BLOCK_M)
        q_off = base + rm[:, None] * D + rd[None, :]
        q = tl.load(q_ptr + q_off)
        do = tl.load(do_ptr + q_off)
        lse = tl.load(lse_ptr + bh * SEQ + rm)
        delta = tl.load(delta_ptr + bh * SEQ + rm)
        st = tl.dot(k, tl.trans(q))
        pt = tl.exp2(st * (scale * 1.4426950408889634) - lse[None, :] * 1.4426950408889634)
        dv += tl.dot(pt, do.to(tl.float32), input_precision="ieee")  # planted: dot-on-fma
        dpt = tl.dot(v, tl.trans(do))
        dst = pt * (dpt - delta[None, :])
        dk += tl.dot(dst.to(q.dtype), q)
    tl.store(dk_ptr + kv_off, (dk * scale).to(tl.float16))
    tl.store(dv_ptr + kv_off, dv.to(tl.float16))


torch.manual_seed(0)
q = torch.randn(BH, SEQ, D, device="cuda", dtype=torch.float16)
k = torch.randn(BH, SEQ, D, device="cuda", dtype=torch.float16)
v = torch.randn(BH, SEQ, D, device="cuda", dtype=torch.float16)
do = torch.randn(BH, SEQ, D, device="cuda", dtype=torch.float16)
scale = D**-0.5
s = torch.bmm(q.float(), k.float().transpose(1, 2)) * scale
lse = torch.logsumexp(s, dim=-1)
p = torch.exp(s - lse[..., None])
delta = (torch.bmm(p, v.float()) * do.float()).sum(-1)
dk = torch.empty_like(k)
dv = torch.empty_like(v)

dkdv_kernel[(SEQ // 64, BH)](
    q, k, v, do, lse, delta, dk, dv, scale, SEQ, D, BLOCK_M=64, BLOCK_N=64, num_warps=4, num_stages=2
)

ref_dv = torch.bmm(p.transpose(1, 2), do.float())
ds = p * (torch.bmm(do.float(), v.float().transpose(1, 2)) - delta[..., None])
ref_dk = torch.bmm(ds.transpose(1, 2), q.float()) * scale
torch.testing.assert_close(dv.float(), ref_dv, rtol=2e-2, atol=2e-2)
torch.testing.assert_close(dk.float(), ref_dk, rtol=2e-2, atol=2e-2)
