"""Per-token fp8 (e4m3) quantisation of an fp32 FFN activation, one row of 28672 channels per program.
Fault: the whole row sits in one 32768-wide block but the launch leaves num_warps at the default of 4, so that each
thread holds 256 values: registers run out and spill, and too few threads cover the latency. Fix: num_warps=16."""

import torch
import triton
import triton.language as tl

T = 4096
D = 28672


@triton.jit
def token_quant_kernel(x_ptr, q_ptr, s_ptr, D, BLOCK_D: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_D)
    mask = cols < D
    x = tl.load(x_ptr + row * D + cols, mask=mask, other=0.0).to(tl.float32)  # planted: register-spills
    amax = tl.maximum(tl.max(tl.abs(x), axis=0), 1e-6)
    scale = amax / 448.0
    q = (x * (448.0 / amax)).to(tl.float8e4nv)
    tl.store(q_ptr + row * D + cols, q, mask=mask)
    tl.store(s_ptr + row, scale)


torch.manual_seed(0)
x = torch.randn(T, D, device="cuda", dtype=torch.float32)
q = torch.empty(T, D, device="cuda", dtype=torch.float8_e4m3fn)
scale = torch.empty(T, device="cuda")

token_quant_kernel[(T,)](x, q, scale, D, BLOCK_D=triton.next_power_of_2(D))

ref_scale = x.abs().amax(dim=1).float() / 448.0
torch.testing.assert_close(scale, ref_scale)
rows = slice(0, T, max(T // 256, 1))
torch.testing.assert_close(q[rows].float() * scale[rows, None], x[rows].float(), rtol=0.07, atol=1e-2)
