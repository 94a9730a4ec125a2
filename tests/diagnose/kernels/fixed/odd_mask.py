"""A long vector, padded to a multiple of 16."""

import torch
import triton
import triton.language as tl


@triton.jit
def square(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(x + i, mask=i < n)
    tl.store(y + i, values * values, mask=i < n)


x = torch.randn(100_000_019, device="cuda", dtype=torch.bfloat16)
padded = torch.nn.functional.pad(x, (0, -x.numel() % 16))
squares = torch.empty_like(padded)
square[(triton.cdiv(padded.numel(), 2048),)](padded, squares, padded.numel(), 2048)
y = squares[: x.numel()]
torch.testing.assert_close(y, x * x)
