"""Unfolds 3 x 3 windows (padding 1) of 32 images of 128 channels of 56 x 56, bf16, as torch.nn.functional.unfold.

Fault: each of 116 M outputs finds its image, channel, tap and pixel by five divisions by numbers that are known only
when the kernel runs: 90 instructions for an output, four times as many as without, 10 G, a good part of them at half
rate, some 0.4 ms. The outputs are 231 MB, with the inputs 77 us.
Fix: the sizes are the same in every launch of a layer: as tl.constexpr a division is a multiplication and a shift.
"""

import torch
import triton
import triton.language as tl

IMAGES = 32
CHANNELS = 128
SIDE = 56


@triton.jit
def im2col(x_ptr, out_ptr, TOTAL, CHANNELS, HEIGHT, WIDTH, TAPS, PAD, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    ox = at % WIDTH
    rest = at // WIDTH  # planted: loop-division
    oy = rest % HEIGHT
    rest = rest // HEIGHT
    kx = rest % TAPS
    rest = rest // TAPS
    ky = rest % TAPS
    plane = rest // TAPS
    channel = plane % CHANNELS
    image = plane // CHANNELS
    iy = oy + ky - PAD
    ix = ox + kx - PAD
    inside = (at < TOTAL) & (iy >= 0) & (iy < HEIGHT) & (ix >= 0) & (ix < WIDTH)
    x = tl.load(x_ptr + ((image * CHANNELS + channel) * HEIGHT + iy) * WIDTH + ix, mask=inside, other=0.0)
    tl.store(out_ptr + at, x, mask=at < TOTAL)


torch.manual_seed(0)
x = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
out = torch.empty(IMAGES, CHANNELS * 9, SIDE * SIDE, device="cuda", dtype=torch.bfloat16)

im2col[(triton.cdiv(out.numel(), 1024),)](x, out, out.numel(), CHANNELS, SIDE, SIDE, 3, 1, BLOCK=1024, num_warps=4)

torch.testing.assert_close(out, torch.nn.functional.unfold(x, 3, padding=1), rtol=0, atol=0)
