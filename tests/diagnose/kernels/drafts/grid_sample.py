"""Bilinear grid sample (optical flow warp) of an NCHW feature map, zero padding, pixel coordinates.
Fault: one program per output pixel with the vector over the channels, which is how one does it in NHWC; in NCHW
neighbouring lanes are H*W elements apart, so each lane pulls its own sector for the loads and for the store.
Fix: put the lanes along the output pixels of a row and loop over the channels."""

import torch
import triton
import triton.language as tl

NB, C, H, W = 4, 256, 128, 128


@triton.jit
def corner(img_ptr, yi, xi, ch, HW, H, W, w):
    ok = (yi >= 0) & (yi < H) & (xi >= 0) & (xi < W)
    return w * tl.load(img_ptr + ch * HW + yi * W + xi, mask=ok, other=0.0)


@triton.jit
def sample_kernel(img_ptr, grid_ptr, out_ptr, H, W, C: tl.constexpr, CH_BLOCK: tl.constexpr, PIX: tl.constexpr):
    n = tl.program_id(1)
    HW = H * W
    pix = tl.program_id(0)
    gx = tl.load(grid_ptr + (n * HW + pix) * 2)
    gy = tl.load(grid_ptr + (n * HW + pix) * 2 + 1)
    x0 = tl.floor(gx)
    y0 = tl.floor(gy)
    fx = gx - x0
    fy = gy - y0
    xi = x0.to(tl.int32)
    yi = y0.to(tl.int32)
    img_ptr += n * C * HW
    out_ptr += n * C * HW
    for c in range(0, C, CH_BLOCK):
        ch = c + tl.arange(0, CH_BLOCK)
        v = corner(img_ptr, yi, xi, ch, HW, H, W, (1 - fy) * (1 - fx))
        v += corner(img_ptr, yi, xi + 1, ch, HW, H, W, (1 - fy) * fx)
        v += corner(img_ptr, yi + 1, xi, ch, HW, H, W, fy * (1 - fx))
        v += corner(img_ptr, yi + 1, xi + 1, ch, HW, H, W, fy * fx)
        tl.store(out_ptr + ch * HW + pix, v)  # planted: uncoalesced-access


torch.manual_seed(0)
img = torch.randn(NB, C, H, W, device="cuda")
ys, xs = torch.meshgrid(torch.arange(H, device="cuda"), torch.arange(W, device="cuda"), indexing="ij")
flow = torch.nn.functional.interpolate(
    torch.randn(NB, 2, H // 16, W // 16, device="cuda") * 4, size=(H, W), mode="bilinear"
)
coords = torch.stack((xs + flow[:, 0], ys + flow[:, 1]), dim=-1).contiguous()
out = torch.empty_like(img)

sample_kernel[(H * W, NB)](img, coords, out, H, W, C, CH_BLOCK=256, PIX=128, num_warps=4)

norm = torch.stack((coords[..., 0] * 2 / (W - 1) - 1, coords[..., 1] * 2 / (H - 1) - 1), dim=-1)
ref = torch.nn.functional.grid_sample(img, norm, mode="bilinear", padding_mode="zeros", align_corners=True)
torch.testing.assert_close(out, ref, rtol=1e-3, atol=2e-3)
