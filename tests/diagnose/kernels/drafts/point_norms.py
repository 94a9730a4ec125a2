"""Lengths of points whose coordinates stand side by side."""

import torch
import triton
import triton.language as tl


@triton.jit
def length(p, i):
    x = tl.load(p + i * 3)  # planted: uncoalesced-access
    y = tl.load(p + i * 3 + 1)
    z = tl.load(p + i * 3 + 2)
    return tl.sqrt(x * x + y * y + z * z)


@triton.jit
def lengths(points, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, length(points, i), mask=i < n)


n = 1 << 24
points, out = torch.rand(n, 3, device="cuda"), torch.empty(n, device="cuda")
lengths[(n // 512,)](points, out, n, 512)
torch.testing.assert_close(out, points.norm(dim=1))
