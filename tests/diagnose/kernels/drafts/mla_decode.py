"""One decoding step of multi-head latent attention: 128 heads over one latent cache of 512 + 64 channels, in splits.

Fault: 16 heads per program. All 128 heads read the same cache, so the cache passes through L2 eight times (1.2 GB
instead of 0.3 GB, over 200 us at L2's 5.5 TB/s), and 16 rows are too few for the warpgroup products (64 rows), so the
matrix products run as mma.sync with every tile of the cache read from shared memory for 16 rows only. The arithmetic
(37 GFLOP) takes some 60 to 100 us with full warpgroup products.
Fix: 64 heads per program, on 8 warps.
"""

import torch
import triton
import triton.language as tl

B = 32
LEN = 4096
HEADS = 128
LATENT = 512
ROPE = 64
SPLITS = 2


@triton.jit
def mla_step(
    q_ptr,
    kv_ptr,
    o_ptr,
    lse_ptr,
    scale,
    LEN,
    HEADS: tl.constexpr,
    LATENT: tl.constexpr,
    ROPE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rh = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    split = tl.program_id(1)
    batch = tl.program_id(2)
    width: tl.constexpr = LATENT + ROPE
    rc = tl.arange(0, LATENT)
    rr = LATENT + tl.arange(0, ROPE)
    rn = tl.arange(0, BLOCK_N)
    q_rows = q_ptr + (batch * HEADS + rh)[:, None] * width
    q_latent = tl.load(q_rows + rc[None, :])
    q_rope = tl.load(q_rows + rr[None, :])
    kv_rows = kv_ptr + (batch.to(tl.int64) * LEN + rn)[:, None] * width
    m = tl.full((BLOCK_H,), -float("inf"), tl.float32)
    l = tl.zeros((BLOCK_H,), tl.float32)
    acc = tl.zeros((BLOCK_H, LATENT), tl.float32)
    part = LEN // SPLITS
    for start in range(split * part, (split + 1) * part, BLOCK_N):
        latent = tl.load(kv_rows + start * width + rc[None, :])
        rope = tl.load(kv_rows + start * width + rr[None, :])
        s = tl.dot(q_latent, tl.trans(latent))  # planted: wgmma-unused
        s = tl.dot(q_rope, tl.trans(rope), s) * scale
        m_new = tl.maximum(m, tl.max(s, axis=1))
        alpha = tl.exp2(m - m_new)
        p = tl.exp2(s - m_new[:, None])
        l = l * alpha + tl.sum(p, axis=1)
        acc = tl.dot(p.to(latent.dtype), latent, acc * alpha[:, None])
        m = m_new
    out = (batch * SPLITS + split) * HEADS + rh
    tl.store(o_ptr + out[:, None] * LATENT + rc[None, :], acc / l[:, None])
    tl.store(lse_ptr + out, m + tl.log2(l))


torch.manual_seed(0)
width = LATENT + ROPE
q = torch.randn(B, HEADS, width, device="cuda", dtype=torch.bfloat16)
kv = torch.randn(B, LEN, width, device="cuda", dtype=torch.bfloat16)
o = torch.empty(B, SPLITS, HEADS, LATENT, device="cuda")
lse = torch.empty(B, SPLITS, HEADS, device="cuda")

BLOCK_H = 16
mla_step[(HEADS // BLOCK_H, SPLITS, B)](
    q,
    kv,
    o,
    lse,
    width**-0.5 * 1.4426950408889634,
    LEN,
    HEADS=HEADS,
    LATENT=LATENT,
    ROPE=ROPE,
    SPLITS=SPLITS,
    BLOCK_H=BLOCK_H,
    BLOCK_N=32,
    num_warps=4,
    num_stages=2,
)

weight = torch.exp2(lse - lse.amax(1, keepdim=True))
got = (o * weight[..., None]).sum(1) / weight.sum(1)[..., None]
s = torch.einsum("bhc,bnc->bhn", q.float(), kv.float()) * width**-0.5
want = torch.einsum("bhn,bnc->bhc", torch.softmax(s, dim=-1), kv[..., :LATENT].float())
torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-3)
