"""Temperature sampling by the Gumbel-max trick (exponential noise drawn outside): block-local argmax over the vocabulary, then a reduction."""

import torch
import triton
import triton.language as tl


@triton.jit
def perturbed(x, e, temp):
    x, e = x.to(tl.float64), e.to(tl.float64)  # planted: float64
    return x / temp - tl.log(e)


@triton.jit
def local_argmax(logits_ptr, noise_ptr, temp_ptr, val_ptr, idx_ptr, V, stride, NBLK, BLOCK: tl.constexpr):
    req = tl.program_id(0)
    blk = tl.program_id(1)
    off = blk * BLOCK + tl.arange(0, BLOCK)
    mask = off < V
    x = tl.load(logits_ptr + req * stride + off, mask=mask, other=float("-inf")).to(tl.float32)
    e = tl.load(noise_ptr + req * stride + off, mask=mask, other=1.0)
    temp = tl.load(temp_ptr + req)
    score = perturbed(x, e, temp).to(tl.float32)
    val, idx = tl.max(score, axis=0, return_indices=True)
    tl.store(val_ptr + req * NBLK + blk, val)
    tl.store(idx_ptr + req * NBLK + blk, blk * BLOCK + idx)


@triton.jit
def final_argmax(val_ptr, idx_ptr, token_ptr, NBLK, BLOCK: tl.constexpr):
    req = tl.program_id(0)
    off = tl.arange(0, BLOCK)
    val = tl.load(val_ptr + req * NBLK + off, mask=off < NBLK, other=float("-inf"))
    best = tl.argmax(val, axis=0)
    tl.store(token_ptr + req, tl.load(idx_ptr + req * NBLK + best))


torch.manual_seed(0)
R, V, BLOCK = 256, 128256, 2048
NBLK = triton.cdiv(V, BLOCK)
logits = torch.randn(R, V, device="cuda", dtype=torch.bfloat16) * 2
noise = torch.empty(R, V, device="cuda", dtype=torch.float32).exponential_().clamp_(min=1e-10)
temps = torch.rand(R, device="cuda", dtype=torch.float32) + 0.5
vals = torch.empty(R, NBLK, device="cuda", dtype=torch.float32)
idxs = torch.empty(R, NBLK, device="cuda", dtype=torch.int32)
tokens = torch.empty(R, device="cuda", dtype=torch.int64)
local_argmax[(R, NBLK)](logits, noise, temps, vals, idxs, V, logits.stride(0), NBLK, BLOCK=BLOCK, num_warps=8)
final_argmax[(R,)](vals, idxs, tokens, NBLK, BLOCK=triton.next_power_of_2(NBLK), num_warps=1)
scores = logits.float() / temps[:, None] - torch.log(noise)
torch.testing.assert_close(scores.gather(1, tokens[:, None])[:, 0], scores.max(1).values, rtol=1e-3, atol=1e-3)
