"""Combine step of split-KV decoding: merges the partial outputs of 32 splits by their log-sum-exps.
One small program per (batch, head): the work of each is one 16 KB tile read in one piece, and there are plenty."""

import torch
import triton
import triton.language as tl

BH, SPLITS, D = 16384, 32, 128


@triton.jit
def combine_kernel(part_ptr, lse_ptr, out_ptr, SPLITS: tl.constexpr, D: tl.constexpr):
    bh = tl.program_id(0)
    rs = tl.arange(0, SPLITS)
    rd = tl.arange(0, D)
    lse = tl.load(lse_ptr + bh * SPLITS + rs)
    part = tl.load(part_ptr + (bh * SPLITS + rs[:, None]) * D + rd[None, :])
    w = tl.exp(lse - tl.max(lse, axis=0))
    w = w / tl.sum(w, axis=0)
    out = tl.sum(part * w[:, None], axis=0)
    tl.store(out_ptr + bh * D + rd, out.to(tl.bfloat16))


torch.manual_seed(0)
part = torch.randn(BH, SPLITS, D, device="cuda")
lse = torch.randn(BH, SPLITS, device="cuda") * 2
out = torch.empty(BH, D, device="cuda", dtype=torch.bfloat16)

combine_kernel[(BH,)](part, lse, out, SPLITS, D, num_warps=4)

ref = (torch.softmax(lse, dim=1)[..., None] * part).sum(1)
torch.testing.assert_close(out.float(), ref, rtol=1e-2, atol=1e-2)
