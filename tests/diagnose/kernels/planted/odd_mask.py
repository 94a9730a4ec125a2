"""A long vector of an odd length."""

import torch
import triton
import triton.language as tl


@triton.jit
def square(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n)  # planted: mask-stops-vectors
    tl.store(y + i, values * values, mask=i < n)


x = torch.randn(100_000_019, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
square[(triton.cdiv(x.numel(), 2048),)](x, y, x.numel(), 2048)
torch.testing.assert_close(y, x * x)
