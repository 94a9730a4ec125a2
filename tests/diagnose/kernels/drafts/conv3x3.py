"""3x3 convolution of a UNet block as an implicit GEMM, channels last."""

import torch
import triton
import triton.language as tl


@triton.jit
def conv3x3_nhwc(x_ptr, w_ptr, y_ptr, B, H, W, C, CO, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pix = tl.program_id(0) * BM + tl.arange(0, BM)
    co = tl.program_id(1) * BN + tl.arange(0, BN)
    wcol = pix % W
    hrow = (pix // W) % H
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    chunks = C // BK
    for it in range(0, 9 * chunks):
        tap = it // chunks
        c = (it % chunks) * BK + rk
        dh = tap // 3 - 1
        dw = tap % 3 - 1
        ok = (hrow + dh >= 0) & (hrow + dh < H) & (wcol + dw >= 0) & (wcol + dw < W)
        src = (pix + dh * W + dw) * C
        x = tl.load(x_ptr + src[:, None] + c[None, :], mask=ok[:, None], other=0.0)  # planted: loads-not-pipelined
        w = tl.load(w_ptr + (tap * C + c)[:, None] * CO + co[None, :])
        acc = tl.dot(x, w, acc)
    tl.store(y_ptr + pix[:, None] * CO + co[None, :], acc.to(y_ptr.dtype.element_ty))


torch.manual_seed(0)
B, H, W, C, CO = 16, 64, 64, 320, 320
x = torch.randn(B, C, H, W, device="cuda", dtype=torch.float16).to(memory_format=torch.channels_last)
weight = torch.randn(CO, C, 3, 3, device="cuda", dtype=torch.float16) / 50
w_rsck = weight.permute(2, 3, 1, 0).contiguous()
y = torch.empty(B, CO, H, W, device="cuda", dtype=torch.float16, memory_format=torch.channels_last)
grid = (B * H * W // 128, CO // 64)
conv3x3_nhwc[grid](x, w_rsck, y, B, H, W, C, CO, BM=128, BN=64, BK=64, num_warps=4, num_stages=1)
ref = torch.nn.functional.conv2d(x, weight, padding=1)
torch.testing.assert_close(y, ref, rtol=2e-2, atol=2e-2)
