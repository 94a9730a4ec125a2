"""Eight warps on rows of 64."""

import torch
import triton
import triton.language as tl


@triton.jit
def normalise(x, y, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i)  # planted: idle-threads
    tl.store(y + row * columns + i, values / tl.sqrt(tl.sum(values * values, 0)))


x = torch.randn(1_000_000, 64, device="cuda")
y = torch.empty_like(x)
normalise[(1_000_000,)](x, y, 64, 64, num_warps=8)
torch.testing.assert_close(y, torch.nn.functional.normalize(x))
