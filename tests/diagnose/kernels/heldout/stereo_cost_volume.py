"""Cost volume of stereo matching: the products of a pixel's features with those of 64 pixels to its left.

Fault: each pixel's 64 products are taken with plain multiplications and sums over the channels, and each pixel loads
its window of 64 x 128 features anew: 4.3 GB through L1 and over 2 billion multiply-adds with their conversions.
Fix: the products of 64 pixels with the 128 positions that their windows span are one tl.dot; store the band of it.
"""

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
    d = tl.arange(0, SHIFTS)
    for x in range(tl.program_id(0) * BLOCK, (tl.program_id(0) + 1) * BLOCK):
        left = tl.load(left_ptr + (line * WIDTH + x) * CHANNELS + c).to(tl.float32)
        at = x - d[:, None]
        right = tl.load(right_ptr + (line * WIDTH + at) * CHANNELS + c[None, :], mask=at >= 0, other=0.0)
        cost = tl.sum(left[None, :] * right.to(tl.float32), axis=1)  # planted: dot-by-hand
        tl.store(out_ptr + (line * WIDTH + x) * SHIFTS + d, (cost / CHANNELS).to(tl.float16))


torch.manual_seed(0)
left = torch.randn(LINES, WIDTH, CHANNELS, device="cuda", dtype=torch.float16)
right = torch.randn(LINES, WIDTH, CHANNELS, device="cuda", dtype=torch.float16)
out = torch.empty(LINES, WIDTH, SHIFTS, device="cuda", dtype=torch.float16)

cost_volume[(WIDTH // 16, LINES)](
    left, right, out, WIDTH=WIDTH, CHANNELS=CHANNELS, SHIFTS=SHIFTS, BLOCK=16, num_warps=4
)

want = torch.zeros_like(out)
for shift in range(SHIFTS):
    product = left[:, shift:].float() * right[:, : WIDTH - shift].float()
    want[:, shift:, shift] = (product.sum(-1) / CHANNELS).half()
torch.testing.assert_close(out, want, rtol=1e-2, atol=1e-2)
