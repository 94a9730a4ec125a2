"""Bilateral filter of 5 x 5 pixels on an image of 4096 x 4096, fp32; edges are held.

Fault: every load has the cache modifier of streams that are read once (.cg), which leaves L1 out, though a pixel is
read for 25 outputs: 1.7 GB come out of L2, 0.3 ms, where the image in and out of memory is 134 MB.
Fix: leave the modifier away; the lines of a tile and its rim stay in L1.
"""

import torch
import triton
import triton.language as tl

HEIGHT = 4096
WIDTH = 4096
RADIUS = 2


@triton.jit
def bilateral_filter(
    image_ptr,
    out_ptr,
    tone,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    RADIUS: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    y = tl.program_id(1) * BLOCK_Y + tl.arange(0, BLOCK_Y)
    x = tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X)
    at = y[:, None] * WIDTH + x[None, :]
    here = tl.load(image_ptr + at, cache_modifier=".cg")
    total = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    norm = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    for dy in tl.static_range(-RADIUS, RADIUS + 1):
        line = tl.minimum(tl.maximum(y + dy, 0), HEIGHT - 1) * WIDTH
        for dx in tl.static_range(-RADIUS, RADIUS + 1):
            column = tl.minimum(tl.maximum(x + dx, 0), WIDTH - 1)
            near = tl.load(image_ptr + line[:, None] + column[None, :], cache_modifier=".cg")  # planted: redundant-load
            step = near - here
            weight = tl.exp2(step * step * tone - 0.18 * (dy * dy + dx * dx))
            total += weight * near
            norm += weight
    tl.store(out_ptr + at, total / norm)


torch.manual_seed(0)
image = torch.rand(HEIGHT, WIDTH, device="cuda")
out = torch.empty_like(image)

bilateral_filter[(WIDTH // 128, HEIGHT // 8)](
    image, out, -8.0, HEIGHT=HEIGHT, WIDTH=WIDTH, RADIUS=RADIUS, BLOCK_Y=8, BLOCK_X=128, num_warps=4
)

padded = torch.nn.functional.pad(image[None, None], (RADIUS,) * 4, mode="replicate")[0, 0]
total = torch.zeros_like(image)
norm = torch.zeros_like(image)
for dy in range(-RADIUS, RADIUS + 1):
    for dx in range(-RADIUS, RADIUS + 1):
        near = padded[RADIUS + dy : RADIUS + dy + HEIGHT, RADIUS + dx : RADIUS + dx + WIDTH]
        weight = torch.exp2((near - image) ** 2 * -8.0 - 0.18 * (dy * dy + dx * dx))
        total += weight * near
        norm += weight
torch.testing.assert_close(out, total / norm, rtol=1e-4, atol=1e-4)
