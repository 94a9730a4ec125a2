"""A layer norm that keeps its row in registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm(x, y, w, n, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    a = tl.load(x + row * n + i, mask=i < n, other=0.0)
    mean = tl.sum(a, 0) / n
    rstd = 1 / tl.sqrt(tl.sum(a * a, 0) / n - mean * mean + eps)
    tl.store(y + row * n + i, (a - mean) * rstd * tl.load(w + i, mask=i < n), mask=i < n)


x = torch.randn(8192, 8192, device="cuda")
w = torch.randn(8192, device="cuda")
y = torch.empty_like(x)
layer_norm[(8192,)](x, y, w, 8192, 1e-5, 8192, num_warps=16)
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (8192,), w), rtol=1e-4, atol=1e-4)
