"""Depth image of a point cloud: each pixel keeps the least depth of the points that fall on it.

Points come in no order, so pixels are updated by atomics. A plain load before spares those of points that lie behind
what is there; if what it reads is out of date, that is only too deep, and the atomic decides. The bits of positive
floats order as integers do.
"""

import torch
import triton
import triton.language as tl

POINTS = 33554432
PIXELS = 2073600


@triton.jit
def zbuffer_splat(pixel_ptr, depth_ptr, image_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel = tl.load(pixel_ptr + i)
    depth = tl.load(depth_ptr + i).to(tl.int32, bitcast=True)
    nearer = depth < tl.load(image_ptr + pixel)
    tl.atomic_min(image_ptr + pixel, depth, mask=nearer, sem="relaxed")


torch.manual_seed(0)
pixel = torch.randint(0, PIXELS, (POINTS,), device="cuda", dtype=torch.int32)
depth = 1 + torch.rand(POINTS, device="cuda")
image = torch.full((PIXELS,), 2**31 - 1, device="cuda", dtype=torch.int32)

zbuffer_splat[(POINTS // 512,)](pixel, depth, image, BLOCK=512, num_warps=4)

want = torch.full((PIXELS,), 2**31 - 1, device="cuda", dtype=torch.int32)
want.scatter_reduce_(0, pixel.long(), depth.view(torch.int32), "amin")
torch.testing.assert_close(image, want)
