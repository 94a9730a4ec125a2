"""Colours of 512 x 512 rays through a radiance field of 256 samples each: densities and colours composited, fp32.

The loop ends when no ray of the tile lets more than 1e-4 of the light through.
"""

import math

import torch
import triton
import triton.language as tl

RAYS = 512 * 512
SAMPLES = 256


@triton.jit
def volume_render(
    density_ptr,
    colour_ptr,
    out_ptr,
    step,
    RAYS: tl.constexpr,
    SAMPLES: tl.constexpr,
    BLOCK: tl.constexpr,
    CHUNK: tl.constexpr,
):
    ray = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    depth = tl.zeros((BLOCK,), tl.float32)
    red = tl.zeros((BLOCK,), tl.float32)
    green = tl.zeros((BLOCK,), tl.float32)
    blue = tl.zeros((BLOCK,), tl.float32)
    start = 0
    while (start < SAMPLES) & (tl.min(depth, axis=0) < 9.21):
        at = ray[:, None] * SAMPLES + start + tl.arange(0, CHUNK)[None, :]
        thick = tl.load(density_ptr + at) * step
        passed = tl.cumsum(thick, axis=1) - thick
        weight = tl.exp(-(depth[:, None] + passed)) * (1.0 - tl.exp(-thick))
        red += tl.sum(weight * tl.load(colour_ptr + at), axis=1)
        green += tl.sum(weight * tl.load(colour_ptr + RAYS * SAMPLES + at), axis=1)
        blue += tl.sum(weight * tl.load(colour_ptr + 2 * RAYS * SAMPLES + at), axis=1)
        depth += tl.sum(thick, axis=1)
        start += CHUNK
    tl.store(out_ptr + ray, red)
    tl.store(out_ptr + RAYS + ray, green)
    tl.store(out_ptr + 2 * RAYS + ray, blue)


torch.manual_seed(0)
side = math.isqrt(RAYS)
u = torch.linspace(0, 1, side, device="cuda")
wall = 56 + 24 * torch.sin(5 * u)[:, None] * torch.cos(4 * u)[None, :]
wall[: side // 10] = SAMPLES
sample = torch.arange(SAMPLES, device="cuda")
density = torch.rand(RAYS, SAMPLES, device="cuda") * torch.where(sample >= wall.reshape(-1, 1), 200.0, 0.2)
colour = torch.rand(3, RAYS, SAMPLES, device="cuda")
out = torch.empty(3, RAYS, device="cuda")

volume_render[(RAYS // 16,)](density, colour, out, 1 / 128, RAYS=RAYS, SAMPLES=SAMPLES, BLOCK=16, CHUNK=32, num_warps=4)

thick = density / 128
weight = torch.exp(thick - thick.cumsum(1)) * (1 - torch.exp(-thick))
torch.testing.assert_close(out, (weight * colour).sum(2), rtol=1e-3, atol=5e-4)
