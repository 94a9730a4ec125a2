"""Sparsemax of rows of 1024 scores: the threshold by Newton's method until it stands still.

The loop is a `while` whose number of iterations only the data know (five or six steps), and it touches registers only,
so there is nothing to fetch ahead; the row is read once and written once.
"""

import torch
import triton
import triton.language as tl

ROWS = 65536
WIDTH = 1024


@triton.jit
def sparsemax(x_ptr, y_ptr, WIDTH: tl.constexpr):
    i = tl.program_id(0) * WIDTH + tl.arange(0, WIDTH)
    x = tl.load(x_ptr + i)
    x -= tl.max(x, axis=0)
    threshold = -1.0
    count = WIDTH + 1.0
    moved = 1
    # from below the threshold only rises, and the set above it only shrinks
    while moved != 0:
        above = x > threshold
        left = tl.sum(above.to(tl.float32), axis=0)
        threshold = (tl.sum(tl.where(above, x, 0.0), axis=0) - 1.0) / left
        moved = (left < count).to(tl.int32)
        count = left
    tl.store(y_ptr + i, tl.maximum(x - threshold, 0.0))


torch.manual_seed(0)
x = torch.randn(ROWS, WIDTH, device="cuda")
y = torch.empty_like(x)

sparsemax[(ROWS,)](x, y, WIDTH=WIDTH, num_warps=1)

ranked = x.sort(dim=1, descending=True).values
total = ranked.cumsum(1)
k = torch.arange(1, WIDTH + 1, device="cuda")
support = (1 + k * ranked > total).sum(1, keepdim=True)
tau = (total.gather(1, support - 1) - 1) / support
torch.testing.assert_close(y, (x - tau).clamp(min=0.0), rtol=1e-4, atol=1e-5)
