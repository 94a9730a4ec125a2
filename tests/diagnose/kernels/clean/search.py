"""Rows of sequences of different lengths: each CTA searches the sequence of its rows, and reads its scale."""

import torch
import triton
import triton.language as tl


@triton.jit
def scaled_rows(x, y, starts, scales, sequences, columns, STEPS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first, last = 0, sequences
    for _ in range(STEPS):
        if first < last:
            middle = (first + last) // 2
            if tl.program_id(0) * ROWS < tl.load(starts + middle + 1):
                last = middle
            else:
                first = middle + 1
    scale = tl.load(scales + first * columns + tl.arange(0, 1))  # one number of a tile's sequence
    i = rows[:, None] * columns + tl.arange(0, BLOCK)[None, :]
    tl.store(y + i, tl.load(x + i) * scale)


x = torch.randn(262144, 512, device="cuda")
starts = torch.arange(0, 262144 + 1024, 1024, device="cuda", dtype=torch.int32)
y, scales = torch.empty_like(x), torch.rand(256, 512, device="cuda")
scaled_rows[(262144 // 16,)](x, y, starts, scales, 256, 512, 9, 16, 512)
assert torch.equal(y, x * scales[:, 0].repeat_interleave(1024)[:, None])
