"""GELU as its paper writes it."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice


@triton.jit
def gelu(x, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + i, mask=i < n)
    inner = 0.7978845608 * (v + 0.044715 * libdevice.pow(v, 3.0))  # planted: slow-math
    tl.store(y + i, 0.5 * v * (1 + 2 * tl.sigmoid(2 * inner) - 1), mask=i < n)


x = torch.randn(1 << 26, device="cuda")
y = torch.empty_like(x)
gelu[(triton.cdiv(x.numel(), 1024),)](x, y, x.numel(), 1024)
torch.testing.assert_close(y, torch.nn.functional.gelu(x, approximate="tanh"), rtol=1e-4, atol=1e-5)
