"""Sums of rows, a vector of partial sums carried."""

import torch
import triton
import triton.language as tl


@triton.jit
def row_sums(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(x + row * columns + start + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(y + row, tl.sum(total, 0))


x = torch.randn(8192, 65536, device="cuda", dtype=torch.bfloat16)
y = torch.empty(8192, device="cuda")
row_sums[(8192,)](x, y, 65536, 4096, num_warps=8)
torch.testing.assert_close(y, x.sum(1, dtype=torch.float32), rtol=1e-3, atol=1e-2)
