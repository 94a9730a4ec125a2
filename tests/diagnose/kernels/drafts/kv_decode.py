"""Grouped-query attention for one decode step over a long KV cache, with partial results and a merge."""

import torch
import triton
import triton.language as tl


@triton.jit
def decode_stage1(  # planted: launch-too-small
    Q,
    K,
    V,
    part_o,
    part_lse,
    sm_scale,
    S,
    stride_kb,
    stride_ks,
    stride_kh,
    HKV: tl.constexpr,
    G: tl.constexpr,
    GP: tl.constexpr,
    D: tl.constexpr,
    SPLITS: tl.constexpr,
    BN: tl.constexpr,
):
    b = tl.program_id(0)
    h = tl.program_id(1)
    sp = tl.program_id(2)
    rg = tl.arange(0, GP)
    rd = tl.arange(0, D)
    rn = tl.arange(0, BN)
    head = (b * HKV + h) * G + rg
    q = tl.load(Q + head[:, None] * D + rd[None, :], mask=rg[:, None] < G, other=0.0)
    per = tl.cdiv(tl.cdiv(S, SPLITS), BN) * BN
    lo = sp * per
    hi = tl.minimum(lo + per, S)
    base = b.to(tl.int64) * stride_kb + h * stride_kh
    m = tl.full((GP,), -1e30, tl.float32)
    l = tl.zeros((GP,), tl.float32)
    acc = tl.zeros((GP, D), tl.float32)
    for n in range(lo, hi, BN):
        pos = n + rn
        off = base + pos[:, None] * stride_ks + rd[None, :]
        k = tl.load(K + off, mask=pos[:, None] < hi, other=0.0)
        s = tl.dot(q, tl.trans(k)) * sm_scale
        s = tl.where(pos[None, :] < hi, s, -1e30)
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        v = tl.load(V + off, mask=pos[:, None] < hi, other=0.0)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        l = l * alpha + tl.sum(p, 1)
        m = m_new
    slot = head * SPLITS + sp
    tl.store(part_o + slot[:, None] * D + rd[None, :], acc / l[:, None], mask=rg[:, None] < G)
    tl.store(part_lse + slot, m + tl.log(l), mask=rg < G)


@triton.jit
def decode_stage2(part_o, part_lse, O, D: tl.constexpr, SPLITS: tl.constexpr):
    head = tl.program_id(0)
    rs = tl.arange(0, SPLITS)
    rd = tl.arange(0, D)
    lse = tl.load(part_lse + head * SPLITS + rs)
    w = tl.exp(lse - tl.max(lse, 0))
    w = w / tl.sum(w, 0)
    o = tl.load(part_o + (head * SPLITS + rs)[:, None] * D + rd[None, :])
    tl.store(O + head * D + rd, tl.sum(o * w[:, None], 0).to(O.dtype.element_ty))


torch.manual_seed(0)
B, HQ, HKV, S, D = 4, 32, 8, 16384, 128
G = HQ // HKV
q = torch.randn(B, HQ, D, device="cuda", dtype=torch.bfloat16)
k_cache = torch.randn(B, S, HKV, D, device="cuda", dtype=torch.bfloat16)
v_cache = torch.randn(B, S, HKV, D, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(q)
SPLITS = 1
part_o = torch.empty(B, HQ, SPLITS, D, device="cuda", dtype=torch.float32)
part_lse = torch.empty(B, HQ, SPLITS, device="cuda", dtype=torch.float32)
decode_stage1[(B, HKV, SPLITS)](
    q,
    k_cache,
    v_cache,
    part_o,
    part_lse,
    D**-0.5,
    S,
    k_cache.stride(0),
    k_cache.stride(1),
    k_cache.stride(2),
    HKV=HKV,
    G=G,
    GP=16,
    D=D,
    SPLITS=SPLITS,
    BN=64,
    num_warps=4,
    num_stages=3,
)
decode_stage2[(B * HQ,)](part_o, part_lse, out, D=D, SPLITS=SPLITS, num_warps=2)
kk = k_cache.transpose(1, 2).repeat_interleave(G, dim=1)
vv = v_cache.transpose(1, 2).repeat_interleave(G, dim=1)
ref = torch.nn.functional.scaled_dot_product_attention(q[:, :, None], kk, vv)[:, :, 0]
torch.testing.assert_close(out, ref, rtol=2e-2, atol=2e-3)
