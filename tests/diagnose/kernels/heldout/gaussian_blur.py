"""Gaussian blur of an image of 2048 x 4096 with a window of 15 x 15, edges repeated.

Fault: each pixel sums its whole window, 225 loads and products, though the weights are a product of a row and a column
of 15. Memory sees little of it, but L1 has to deliver 1.9 G values with their addresses: 0.4 ms and more, where the
image streams in and out in 22 us.
Fix: blur down the columns and then along the rows, 15 loads each; the second pass reads and writes the image again.
"""

import torch
import triton
import triton.language as tl

HEIGHT = 2048
WIDTH = 4096
RADIUS = 7


@triton.jit
def gaussian_blur(
    image_ptr, tap_ptr, out_ptr, height, width, RADIUS: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr
):
    y = (tl.program_id(1) * BLOCK_Y + tl.arange(0, BLOCK_Y))[:, None]
    x = (tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X))[None, :]
    acc = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    for dy in range(-RADIUS, RADIUS + 1):
        row = tl.minimum(tl.maximum(y + dy, 0), height - 1)
        for dx in range(-RADIUS, RADIUS + 1):  # planted: not-separated
            column = tl.minimum(tl.maximum(x + dx, 0), width - 1)
            tap = tl.load(tap_ptr + dy + RADIUS) * tl.load(tap_ptr + dx + RADIUS)
            acc += tap * tl.load(image_ptr + row * width + column)
    tl.store(out_ptr + y * width + x, acc)


torch.manual_seed(0)
image = torch.randn(HEIGHT, WIDTH, device="cuda")
taps = torch.exp(-0.5 * (torch.arange(-RADIUS, RADIUS + 1, device="cuda") / 2.5) ** 2)
taps /= taps.sum()
out = torch.empty_like(image)

gaussian_blur[(WIDTH // 256, HEIGHT // 4)](
    image, taps, out, HEIGHT, WIDTH, RADIUS=RADIUS, BLOCK_Y=4, BLOCK_X=256, num_warps=4
)

want = image
for axis in (0, 1):
    size = image.shape[axis]
    at = torch.arange(size, device="cuda")
    near = [(at + d).clamp(0, size - 1) for d in range(-RADIUS, RADIUS + 1)]
    want = sum(tap * want.index_select(axis, index) for tap, index in zip(taps, near, strict=True))
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
