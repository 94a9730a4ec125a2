"""Rows of an odd length."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale_rows(x, y, columns, BLOCK: tl.constexpr):
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = tl.program_id(0) * columns
    tl.store(y + row + i, tl.load(x + row + i, mask=i < columns) * 2.0, mask=i < columns)  # planted: narrow-access


x = torch.randn(4096, 4099, device="cuda", dtype=torch.bfloat16)
scale_rows[(4096, 3)](x, torch.empty_like(x), 4099, 2048, num_warps=4)
