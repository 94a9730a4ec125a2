"""Lengths of points whose coordinates have a tensor each."""

import torch
import triton
import triton.language as tl


@triton.jit
def length(p, i, n):
    x = tl.load(p + i)
    y = tl.load(p + n + i)
    z = tl.load(p + 2 * n + i)
    return tl.sqrt(x * x + y * y + z * z)


@triton.jit
def lengths(points, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, length(points, i, n), mask=i < n)


n = 1 << 24
points, out = torch.rand(n, 3, device="cuda").T.contiguous(), torch.empty(n, device="cuda")
lengths[(n // 512,)](points, out, n, 512)
torch.testing.assert_close(out, points.norm(dim=0))
