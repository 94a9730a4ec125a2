"""A softmax in double precision."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i)
    wide = values.to(tl.float64)  # planted: float64
    e = tl.exp(wide - tl.max(wide, 0))
    tl.store(y + row * columns + i, e / tl.sum(e, 0))


x = torch.randn(65536, 2048, device="cuda")
y = torch.empty_like(x)
softmax[(65536,)](x, y, 2048, 2048, num_warps=4)
torch.testing.assert_close(y, x.softmax(1))
