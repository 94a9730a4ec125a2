"""Dropout, which draws a number for each element."""

import torch
import triton
import triton.language as tl


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    keep = tl.rand(seed, i) > p  # planted: random-numbers
    v = tl.load(x + i, mask=mask)
    tl.store(out + i, tl.where(keep, v / (1 - p), 0.0), mask=mask)


n = 1 << 26
x = torch.ones(n, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(x)
dropout[(triton.cdiv(n, 1024),)](x, out, n, 0.5, 7, 1024)
assert abs(out.float().mean().item() - 1) < 0.01
