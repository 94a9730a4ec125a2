"""Rows of an odd length."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_rows(x, y, columns, BLOCK: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    tl.store(y + row + i, tl.load(x + row + i, mask=i < columns) * 2.0, mask=i < columns)  # planted: narrow-access


x = torch.randn(32768, 4099, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
scale_rows[(32768, 3)](x, y, 4099, 2048, num_warps=4)
assert torch.equal(y, 2 * x)
