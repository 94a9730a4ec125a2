"""Sums over a batch whose row numbers are made 64 bits wide in the loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def place(x, rows, columns, stride):
    return x + rows.to(tl.int64)[:, None] * stride + columns[None, :]  # planted: int64-index


@triton.jit
def batch_sums(x, out, batch, stride, BF: tl.constexpr, BB: tl.constexpr):
    columns = tl.program_id(0) * BF + tl.arange(0, BF)
    total = tl.zeros((BB, BF), tl.float32)
    for first in range(0, batch, BB):
        total += tl.load(place(x, first + tl.arange(0, BB), columns, stride))
    tl.store(out + columns, tl.sum(total, 0))


x = torch.randn(8192, 32768, device="cuda")
out = torch.empty(32768, device="cuda")
batch_sums[(32768 // 128,)](x, out, 8192, x.stride(0), 128, 32)
torch.testing.assert_close(out, x.sum(0), rtol=1e-3, atol=1e-2)
