"""Backward of RMSNorm: the gradient of the input, and of the weight summed over 16384 rows."""

import torch
import triton
import triton.language as tl

ROWS = 16384
WIDTH = 4096


@triton.jit
def rms_backward(dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, ROWS, WIDTH: tl.constexpr):
    cols = tl.arange(0, WIDTH)
    w = tl.load(w_ptr + cols).to(tl.float32)
    dw = tl.zeros((WIDTH,), tl.float32)
    for step in tl.range(tl.program_id(0), ROWS, tl.num_programs(0), num_stages=3):
        row = tl.cast(step, tl.int64)
        rstd = tl.load(rstd_ptr + row)
        dy = tl.load(dy_ptr + row * WIDTH + cols).to(tl.float32)
        normed = tl.load(x_ptr + row * WIDTH + cols).to(tl.float32) * rstd
        g = dy * w
        dx = (g - normed * (tl.sum(g * normed, axis=0) / WIDTH)) * rstd
        tl.store(dx_ptr + row * WIDTH + cols, dx.to(tl.bfloat16))
        dw += dy * normed
    tl.atomic_add(dw_ptr + cols, dw, sem="relaxed")


torch.manual_seed(0)
x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
dy = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
w = torch.randn(WIDTH, device="cuda", dtype=torch.bfloat16)
rstd = torch.rsqrt(x.float().square().mean(-1) + 1e-6)
dx = torch.empty_like(x)
dw = torch.zeros(WIDTH, device="cuda")

rms_backward[(132 * 2,)](dy, x, w, rstd, dx, dw, ROWS, WIDTH=WIDTH, num_warps=8)

normed = x.float() * rstd[:, None]
g = dy.float() * w.float()
torch.testing.assert_close(
    dx.float(), (g - normed * (g * normed).mean(-1, keepdim=True)) * rstd[:, None], rtol=2e-2, atol=1e-2
)
torch.testing.assert_close(dw, (dy.float() * normed).sum(0), rtol=1e-3, atol=5e-2)
