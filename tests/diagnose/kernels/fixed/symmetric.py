"""The sum of a matrix and its transpose: the second tile is loaded with its indices swapped."""

import torch
import triton
import triton.language as tl


@triton.jit
def row_norms(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for start in range(0, n, BLOCK):
        j = start + tl.arange(0, BLOCK)
        tile = tl.load(x + i[:, None] * n + j[None, :])
        other = tl.load(x + j[None, :] * n + i[:, None])
        both = tile + other
        total += both * both
    tl.store(out + i, tl.sum(total, 1))


x = torch.randn(16384, 16384, device="cuda")
out = torch.empty(16384, device="cuda")
row_norms[(16384 // 64,)](x, out, 16384, 64)
torch.testing.assert_close(out, (x + x.T).square().sum(1), rtol=1e-3, atol=1e-2)
