"""Depthwise 7 x 7 convolution of ConvNeXt's first stage: 64 images, 96 channels of 56 x 56, fp32, padding 3.

Fault: the loads carry cache_modifier=".cg", which passes by L1. Each value is wanted by 49 taps, and every one of them
is fetched from L2: 64 x 96 x 56 x 64 lanes x 49 taps are 34 M loads of a warp, each of 128 bytes that begin anywhere,
five sectors: 5.4 GB, some 1 ms at the 5.5 TB/s of L2. From memory the work is 154 MB, 46 us.
Fix: leave out the modifier. The rows of a tile stay in L1 (14 x 62 values, 3.5 kB) and L2 is asked once for each.
"""

import torch
import triton
import triton.language as tl

IMAGES = 64
CHANNELS = 96
SIDE = 56


@triton.jit
def depthwise_conv(
    x_ptr,
    w_ptr,
    y_ptr,
    CHANNELS,
    SIDE: tl.constexpr,
    TAPS: tl.constexpr,
    BLOCK_Y: tl.constexpr,
    BLOCK_X: tl.constexpr,
):
    plane = tl.program_id(1)
    channel = plane % CHANNELS
    oy = (tl.program_id(0) * BLOCK_Y + tl.arange(0, BLOCK_Y))[:, None]
    ox = tl.arange(0, BLOCK_X)[None, :]
    x_ptr += plane * SIDE * SIDE
    acc = tl.zeros((BLOCK_Y, BLOCK_X), tl.float32)
    for i in tl.static_range(TAPS):
        for j in tl.static_range(TAPS):
            iy = oy + i - TAPS // 2
            ix = ox + j - TAPS // 2
            inside = (iy >= 0) & (iy < SIDE) & (ix >= 0) & (ix < SIDE)
            x = tl.load(x_ptr + iy * SIDE + ix, mask=inside, other=0.0, cache_modifier=".cg")  # planted: redundant-load
            acc += x * tl.load(w_ptr + (channel * TAPS + i) * TAPS + j)
    tl.store(y_ptr + plane * SIDE * SIDE + oy * SIDE + ox, acc, mask=(oy < SIDE) & (ox < SIDE))


torch.manual_seed(0)
x = torch.randn(IMAGES, CHANNELS, SIDE, SIDE, device="cuda")
w = torch.randn(CHANNELS, 1, 7, 7, device="cuda") / 7
y = torch.empty_like(x)

depthwise_conv[(triton.cdiv(SIDE, 8), IMAGES * CHANNELS)](
    x, w, y, CHANNELS, SIDE=SIDE, TAPS=7, BLOCK_Y=8, BLOCK_X=64, num_warps=4
)

want = torch.zeros_like(x)
padded = torch.nn.functional.pad(x, (3, 3, 3, 3))
for i in range(7):
    for j in range(7):
        want += padded[:, :, i : i + SIDE, j : j + SIDE] * w[None, :, 0, i, j, None, None]
torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
