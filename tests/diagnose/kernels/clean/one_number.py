"""A number of each row: nothing lies beside it that the CTA could use."""

import torch
import triton
import triton.language as tl


@triton.jit
def corner(x, y, stride, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    tl.store(y + tl.program_id(0) * stride + column, 2 * tl.load(x + tl.program_id(0) * stride + column))


x = torch.randn(65536, 4096, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
corner[(65536,)](x, y, 4096, 1)
assert torch.equal(y[:, 0], 2 * x[:, 0])
