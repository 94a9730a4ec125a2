"""A matrix times a vector, as one would write it in C."""

import torch
import triton
import triton.language as tl


@triton.jit
def matvec(a, x, y, K):
    row = tl.program_id(0)
    acc = 0.0
    for k in range(K):
        acc += tl.load(a + row * K + k) * tl.load(x + k)  # planted: scalar-loop
    tl.store(y + row, acc)


a = torch.randn(4096, 4096, device="cuda")
x = torch.randn(4096, device="cuda")
y = torch.empty(4096, device="cuda")
matvec[(4096,)](a, x, y, 4096)
torch.testing.assert_close(y, a @ x, rtol=1e-3, atol=1e-2)
