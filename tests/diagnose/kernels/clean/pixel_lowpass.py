"""First-order low pass of each pixel of a film over time, y[t] = y[t - 1] + a (x[t] - y[t - 1]).

The loop over frames is a chain, but the pixels are a million chains, four to a thread, side by side in memory.
"""

import torch
import triton
import triton.language as tl

FRAMES = 96
PIXELS = 1048576
RATE = 0.25


@triton.jit
def pixel_lowpass(x_ptr, y_ptr, RATE: tl.constexpr, FRAMES: tl.constexpr, PIXELS: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.zeros((BLOCK,), tl.float32)
    for frame in range(FRAMES):
        y += RATE * (tl.load(x_ptr + frame * PIXELS + pixel) - y)
        tl.store(y_ptr + frame * PIXELS + pixel, y)


torch.manual_seed(0)
x = torch.randn(FRAMES, PIXELS, device="cuda")
y = torch.empty(FRAMES, PIXELS, device="cuda")

pixel_lowpass[(PIXELS // 512,)](x, y, RATE=RATE, FRAMES=FRAMES, PIXELS=PIXELS, BLOCK=512, num_warps=4)

want = torch.zeros(PIXELS, device="cuda")
for frame in range(FRAMES):
    want += RATE * (x[frame] - want)
    torch.testing.assert_close(y[frame], want, atol=1e-5, rtol=1e-5)
