"""Sums of rows with indices of 32 bits, from an origin of 64."""

import torch
import triton
import triton.language as tl


@triton.jit
def row_sums(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    x += row * columns
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        total += tl.load(x + start + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(y + row, tl.sum(total, 0))


x = torch.randn(65536, 16384, device="cuda", dtype=torch.bfloat16)
y = torch.empty(65536, device="cuda")
row_sums[(65536,)](x, y, 16384, 1024)
torch.testing.assert_close(y, x.sum(1, dtype=torch.float32), rtol=1e-3, atol=1e-2)
