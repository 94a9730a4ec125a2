"""3 x 3 median filter of 12 planes of 1080 x 1920 pixels in fp32, edges repeated.

The median is found with minima and maxima of nine values held apart, no sort.
"""

import torch
import triton
import triton.language as tl

PLANES = 12
H = 1080
W = 1920


@triton.jit
def middle(a, b, c):
    return tl.maximum(tl.minimum(a, b), tl.minimum(tl.maximum(a, b), c))


@triton.jit
def column(up, mid, low, x):
    a = tl.load(up + x)
    b = tl.load(mid + x)
    c = tl.load(low + x)
    return tl.minimum(tl.minimum(a, b), c), middle(a, b, c), tl.maximum(tl.maximum(a, b), c)


@triton.jit
def median_filter(x_ptr, y_ptr, H: tl.constexpr, W: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < H * W
    base = tl.program_id(1) * H * W
    x = at % W
    y = tl.minimum(at // W, H - 1)
    up = x_ptr + base + tl.maximum(y - 1, 0) * W
    mid = x_ptr + base + y * W
    low = x_ptr + base + tl.minimum(y + 1, H - 1) * W
    least_0, middle_0, most_0 = column(up, mid, low, tl.maximum(x - 1, 0))
    least_1, middle_1, most_1 = column(up, mid, low, x)
    least_2, middle_2, most_2 = column(up, mid, low, tl.minimum(x + 1, W - 1))
    least = tl.maximum(tl.maximum(least_0, least_1), least_2)
    most = tl.minimum(tl.minimum(most_0, most_1), most_2)
    median = middle(least, middle(middle_0, middle_1, middle_2), most)
    tl.store(y_ptr + base + at, median, mask=inside)


torch.manual_seed(0)
x = torch.rand(PLANES, H, W, device="cuda")
y = torch.empty_like(x)

median_filter[(triton.cdiv(H * W, 256), PLANES)](x, y, H=H, W=W, BLOCK=256, num_warps=4)

for plane, got in zip(x, y, strict=True):
    padded = torch.nn.functional.pad(plane[None, None], (1, 1, 1, 1), mode="replicate")[0, 0]
    taps = torch.stack([padded[i : i + H, j : j + W] for i in range(3) for j in range(3)], -1)
    torch.testing.assert_close(got, taps.sort(-1).values[..., 4], rtol=0, atol=0)
