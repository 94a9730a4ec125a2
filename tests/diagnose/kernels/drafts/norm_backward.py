"""RMSNorm backward: persistent programs take rows in turn and produce dx and the weight gradient."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm_bwd(dy_ptr, x_ptr, w_ptr, rstd_ptr, dx_ptr, dw_ptr, M, N, stride, BLOCK_N: tl.constexpr):
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    w = tl.load(w_ptr + cols, mask=mask, other=0.0).to(tl.float32)
    for row in range(tl.program_id(0), M, tl.num_programs(0)):
        off = row * stride + cols
        x = tl.load(x_ptr + off, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_ptr + off, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_ptr + row)
        xhat = x * rstd
        wdy = w * dy
        c = tl.sum(xhat * wdy, axis=0) / N
        tl.store(dx_ptr + off, ((wdy - xhat * c) * rstd).to(dx_ptr.dtype.element_ty), mask=mask)
        tl.atomic_add(dw_ptr + cols, dy * xhat, mask=mask)  # planted: atomic-contention


torch.manual_seed(0)
M, N = 8192, 4096
x = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
dy = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
weight = torch.rand(N, device="cuda", dtype=torch.bfloat16) + 0.5
rstd = torch.rsqrt(x.float().pow(2).mean(-1) + 1e-6)
dx = torch.empty_like(x)
dw = torch.zeros(N, device="cuda", dtype=torch.float32)
PROGRAMS = 132 * 2
rms_norm_bwd[(PROGRAMS,)](
    dy, x, weight, rstd, dx, dw, M, N, x.stride(0), BLOCK_N=triton.next_power_of_2(N), num_warps=8
)
xhat = x.float() * rstd[:, None]
wdy = dy.float() * weight.float()
ref_dx = (wdy - xhat * (xhat * wdy).mean(-1, keepdim=True)) * rstd[:, None]
torch.testing.assert_close(dx.float(), ref_dx, rtol=2e-2, atol=2e-2)
torch.testing.assert_close(dw, (dy.float() * xhat).sum(0), rtol=1e-3, atol=2e-2)
