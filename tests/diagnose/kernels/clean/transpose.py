"""A transposition by tiles."""

import torch
import triton
import triton.language as tl


@triton.jit
def transpose(x, y, n, m, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    tile = tl.load(x + i[:, None] * m + j[None, :])
    tl.store(y + j[:, None] * n + i[None, :], tile.T)


x = torch.randn(8192, 8192, device="cuda")
y = torch.empty_like(x)
transpose[(128, 128)](x, y, 8192, 8192, 64, num_warps=4)
assert torch.equal(y, x.T)
