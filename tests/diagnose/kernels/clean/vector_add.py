"""An addition of vectors."""

import torch
import triton
import triton.language as tl


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


x, y = torch.randn(2, 1 << 26, device="cuda").unbind(0)
out = torch.empty_like(x)
add[(1 << 16,)](x, y, out, 1 << 26, 1024)
assert torch.equal(out, x + y)
