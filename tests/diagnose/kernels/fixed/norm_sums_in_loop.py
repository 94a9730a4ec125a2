"""A layer norm that sums once, after its loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def variance(x, out, n, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    mean = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        a = tl.load(x + row * n + i, mask=i < n, other=0.0)
        mean += a * a
    tl.store(out + row, tl.sum(mean, axis=0) / n)


x = torch.randn(8192, 32768, device="cuda")
out = torch.empty(8192, device="cuda")
variance[(8192,)](x, out, 32768, 1024)
torch.testing.assert_close(out, x.square().mean(1), rtol=1e-4, atol=1e-4)
