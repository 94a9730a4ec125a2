"""Cost volume of stereo matching: the products of a pixel's features with those of 64 pixels to its left."""

import torch
import triton
import triton.language as tl

LINES = 512
WIDTH = 512
CHANNELS = 128
SHIFTS = 64


@triton.jit
def cost_volume(
    left_ptr,
    right_ptr,
    out_ptr,
    WIDTH: tl.constexpr,
    CHANNELS: tl.constexpr,
    SHIFTS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    line = tl.program_id(1)
    c = tl.arange(0, CHANNELS)
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = tl.program_id(0) * BLOCK - SHIFTS + tl.arange(0, BLOCK + SHIFTS)
    left = tl.load(left_ptr + (line * WIDTH + x)[:, None] * CHANNELS + c[None, :])
    right = tl.load(right_ptr + (line * WIDTH + at)[:, None] * CHANNELS + c[None, :], mask=at[:, None] >= 0, other=0.0)
    cost = tl.dot(left, tl.trans(right))
    d = x[:, None] - at[None, :]
    to = out_ptr + (line * WIDTH + x)[:, None] * SHIFTS + d
    tl.store(to, (cost / CHANNELS).to(tl.float16), mask=(d >= 0) & (d < SHIFTS))


torch.manual_seed(0)
left = torch.randn(LINES, WIDTH, CHANNELS, device="cuda", dtype=torch.float16)
right = torch.randn(LINES, WIDTH, CHANNELS, device="cuda", dtype=torch.float16)
out = torch.empty(LINES, WIDTH, SHIFTS, device="cuda", dtype=torch.float16)

cost_volume[(WIDTH // 64, LINES)](
    left, right, out, WIDTH=WIDTH, CHANNELS=CHANNELS, SHIFTS=SHIFTS, BLOCK=64, num_warps=4
)

want = torch.zeros_like(out)
for shift in range(SHIFTS):
    product = left[:, shift:].float() * right[:, : WIDTH - shift].float()
    want[:, shift:, shift] = (product.sum(-1) / CHANNELS).half()
torch.testing.assert_close(out, want, rtol=1e-2, atol=1e-2)
