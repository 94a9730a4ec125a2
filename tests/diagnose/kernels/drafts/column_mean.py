"""The mean of each column, a program a column."""

import torch
import triton
import triton.language as tl


@triton.jit
def column_mean(x, out, rows, columns, BLOCK: tl.constexpr):
    column = tl.program_id(0)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for start in range(0, rows, BLOCK):
        r = start + tl.arange(0, BLOCK)
        acc += tl.load(x + r * columns + column, mask=r < rows, other=0.0)  # planted: uncoalesced-access
    tl.store(out + column, tl.sum(acc, axis=0) / rows)


x = torch.randn(8192, 4096, device="cuda")
out = torch.empty(4096, device="cuda")
column_mean[(4096,)](x, out, 8192, 4096, 1024)
assert torch.allclose(out, x.mean(0), atol=1e-4)
