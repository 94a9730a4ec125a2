"""Linear recurrence h[t] = a[t] * h[t-1] + b[t] of a gated recurrent layer, layout (batch, time, channel)."""

import torch
import triton
import triton.language as tl


@triton.jit
def linear_recurrence(a_ptr, b_ptr, h_ptr, L, D, BLOCK_D: tl.constexpr):
    d = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    base = tl.program_id(1).to(tl.int64) * L * D
    h = tl.zeros((BLOCK_D,), tl.float32)
    for t in range(0, L):
        off = base + t * D + d
        a = tl.load(a_ptr + off).to(tl.float32)  # planted: few-bytes-in-flight
        b = tl.load(b_ptr + off).to(tl.float32)
        h = a * h + b
        tl.store(h_ptr + off, h.to(h_ptr.dtype.element_ty))


torch.manual_seed(0)
B, L, D = 8, 2048, 2048
a = torch.sigmoid(torch.randn(B, L, D, device="cuda") + 2).to(torch.bfloat16)
b = torch.randn(B, L, D, device="cuda", dtype=torch.bfloat16)
h = torch.empty_like(b)
linear_recurrence[(D // 64, B)](a, b, h, L, D, BLOCK_D=64, num_warps=2)
ra, rb = a.float(), b.float()
step = 1
while step < L:
    rb = torch.cat([rb[:, :step], rb[:, step:] + ra[:, step:] * rb[:, :-step]], dim=1)
    ra = torch.cat([ra[:, :step], ra[:, step:] * ra[:, :-step]], dim=1)
    step *= 2
torch.testing.assert_close(h.float(), rb, rtol=2e-2, atol=2e-2)
