"""The sum of a vector, straight into one number."""

import torch
import triton
import triton.language as tl


@triton.jit
def total(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n, other=0.0)
    tl.atomic_add(out + i * 0, values, mask=i < n)  # planted: atomic-contention


x = torch.randn(1 << 24, device="cuda")
out = torch.zeros(1, device="cuda")
total[(triton.cdiv(x.numel(), 1024),)](x, out, x.numel(), 1024)
torch.testing.assert_close(out[0], x.sum(), rtol=1e-3, atol=1)
