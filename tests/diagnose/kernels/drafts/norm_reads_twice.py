"""A layer norm that reads its row in two passes."""

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm(x, y, w, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    total = tl.zeros([BLOCK], tl.float32)
    squares = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        a = tl.load(x + row * n + i, mask=i < n, other=0.0)
        total += a
        squares += a * a
    mean = tl.sum(total, 0) / n
    rstd = 1 / tl.sqrt(tl.sum(squares, 0) / n - mean * mean + eps)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        a = tl.load(x + row * n + i, mask=i < n, other=0.0)  # planted: redundant-load
        tl.store(y + row * n + i, (a - mean) * rstd * tl.load(w + i, mask=i < n), mask=i < n)


x = torch.randn(8192, 8192, device="cuda")
w = torch.randn(8192, device="cuda")
y = torch.empty_like(x)
layer_norm[(8192,)](x, y, w, 8192, 1e-5, 1024)
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8192,), w), rtol=1e-4, atol=1e-4)
