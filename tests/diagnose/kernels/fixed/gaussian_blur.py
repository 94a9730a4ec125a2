"""Gaussian blur of an image of 2048 x 4096 with a window of 15 x 15, edges repeated."""

import torch
import triton
import triton.language as tl

HEIGHT = 2048
WIDTH = 4096
RADIUS = 7


@triton.jit
def gaussian_blur(
    image_ptr,
    tap_ptr,
    out_ptr,
    height,
    width,
    DOWN: tl.constexpr,
    RADIUS: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    y = (tl.program_id(1) * BLOCK_Y + tl.arange(0, BLOCK_Y))[:, None]
    x = (tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X))[None, :]
    acc = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    for d in tl.static_range(-RADIUS, RADIUS + 1):
        tap = tl.load(tap_ptr + d + RADIUS)
        if DOWN:
            at = tl.minimum(tl.maximum(y + d, 0), height - 1) * width + x
        else:
            at = y * width + tl.minimum(tl.maximum(x + d, 0), width - 1)
        acc += tap * tl.load(image_ptr + at)
    tl.store(out_ptr + y * width + x, acc)


torch.manual_seed(0)
image = torch.randn(HEIGHT, WIDTH, device="cuda")
taps = torch.exp(-0.5 * (torch.arange(-RADIUS, RADIUS + 1, device="cuda") / 2.5) ** 2)
taps /= taps.sum()
out = torch.empty_like(image)

half = torch.empty_like(image)
grid = (WIDTH // 256, HEIGHT // 4)
gaussian_blur[grid](image, taps, half, HEIGHT, WIDTH, DOWN=True, RADIUS=RADIUS, BLOCK_Y=4, BLOCK_X=256, num_warps=4)
gaussian_blur[grid](half, taps, out, HEIGHT, WIDTH, DOWN=False, RADIUS=RADIUS, BLOCK_Y=4, BLOCK_X=256, num_warps=4)

want = image
for axis in (0, 1):
    size = image.shape[axis]
    at = torch.arange(size, device="cuda")
    near = [(at + d).clamp(0, size - 1) for d in range(-RADIUS, RADIUS + 1)]
    want = sum(tap * want.index_select(axis, index) for tap, index in zip(taps, near, strict=True))
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
