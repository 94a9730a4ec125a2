"""A norm of many rows that loads its weights for each of them."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm(x, w, y, rows, columns, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    first = tl.program_id(0) * ROWS
    for row in range(first, first + ROWS):
        values = tl.load(x + row * columns + i)
        weight = tl.load(w + i)  # planted: redundant-load
        mean = tl.sum(values * values, 0) / columns
        tl.store(y + row * columns + i, values * tl.rsqrt(mean + 1e-6) * weight)


x = torch.randn(65536, 2048, device="cuda")
w = torch.randn(2048, device="cuda")
y = torch.empty_like(x)
rms_norm[(65536 // 16,)](x, w, y, 65536, 2048, 16, 2048, num_warps=4)
torch.testing.assert_close(y, torch.nn.functional.rms_norm(x, (2048,), w, 1e-6), rtol=1e-4, atol=1e-4)
