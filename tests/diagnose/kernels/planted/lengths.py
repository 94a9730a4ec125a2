"""A kernel that is compiled for each length of a batch."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, out, n: tl.constexpr, BLOCK: tl.constexpr):  # planted: recompiled-often
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


x = torch.randn(1 << 20, device="cuda")
out = torch.empty_like(x)
for n in (1_000_000, 999_936, 777_728, 640_000, 512_000):
    scale[(triton.cdiv(n, 2048),)](x, out, n, 2048)
