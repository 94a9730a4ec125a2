"""Subtracts a detector's dark level from 8-bit frames, down to zero.

The frames are more than 2^31 bytes, so that offsets take 64 bits; only a program's first one is computed in them.
"""

import torch
import triton
import triton.language as tl

FRAMES = 2304
PIXELS = 1048576
DARK = 12


@triton.jit
def photon_counts(x_ptr, out_ptr, DARK: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + first + i)
    tl.store(out_ptr + first + i, tl.where(x > DARK, x - DARK, 0).to(tl.uint8))


torch.manual_seed(0)
x = torch.randint(0, 256, (FRAMES, PIXELS), device="cuda", dtype=torch.uint8)
out = torch.empty_like(x)

photon_counts[(FRAMES * PIXELS // 4096,)](x, out, DARK=DARK, BLOCK=4096, num_warps=4)

for frame in range(FRAMES):
    torch.testing.assert_close(out[frame], x[frame].clamp(min=DARK) - DARK)
