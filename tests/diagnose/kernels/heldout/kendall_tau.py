"""Kendall's rank correlation of two samples: pairs in the same order less pairs in the opposite one.

Fault: a program takes 256 values and all those after them, so that the first has 128 times the work of the last; the
128 programs all start at once, and the device waits for the first ones, which take twice the mean.
Fix: cut the values that follow in pieces of 2048 too, a program for each, and leave out those before the diagonal.
"""

import torch
import triton
import triton.language as tl

SIZE = 32768


@triton.jit
def kendall_tau(  # planted: imbalance
    x_ptr, y_ptr, sum_ptr, SIZE: tl.constexpr, BLOCK: tl.constexpr, STEP: tl.constexpr
):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    y = tl.load(y_ptr + i)
    acc = tl.zeros((BLOCK, STEP), tl.int32)
    for start in range(tl.program_id(0) * BLOCK, SIZE, STEP):
        j = start + tl.arange(0, STEP)
        product = (x[:, None] - tl.load(x_ptr + j)[None, :]) * (y[:, None] - tl.load(y_ptr + j)[None, :])
        later = j[None, :] > i[:, None]
        acc += (later & (product > 0.0)).to(tl.int32) - (later & (product < 0.0)).to(tl.int32)
    tl.atomic_add(sum_ptr, tl.sum(acc).to(tl.int64), sem="relaxed")


torch.manual_seed(0)
x = torch.randn(SIZE, device="cuda")
y = 0.5 * x + torch.randn(SIZE, device="cuda")
total = torch.zeros(1, device="cuda", dtype=torch.int64)

kendall_tau[(SIZE // 256,)](x, y, total, SIZE=SIZE, BLOCK=256, STEP=32, num_warps=8)

want = 0
for start in range(0, SIZE, 1024):
    dx = x[start : start + 1024, None] - x[None, :]
    dy = y[start : start + 1024, None] - y[None, :]
    want += int((dx * dy).sign().long().sum())
torch.testing.assert_close(total.cpu(), torch.tensor([want // 2]))
