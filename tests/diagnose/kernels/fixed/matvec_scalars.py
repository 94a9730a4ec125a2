"""A matrix times a vector, a block of numbers at a time."""

import torch
import triton
import triton.language as tl


@triton.jit
def matvec(a, x, y, K, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, K, BLOCK):
        k = start + tl.arange(0, BLOCK)
        acc += tl.load(a + row * K + k) * tl.load(x + k)
    tl.store(y + row, tl.sum(acc, 0))


a = torch.randn(4096, 4096, device="cuda")
x = torch.randn(4096, device="cuda")
y = torch.empty(4096, device="cuda")
matvec[(4096,)](a, x, y, 4096, 1024)
torch.testing.assert_close(y, a @ x, rtol=1e-3, atol=1e-2)
