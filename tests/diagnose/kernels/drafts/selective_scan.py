"""Mamba selective scan, forward: the state of a block of channels stays in registers, time is walked step by step.
Fault: BLOCK_D = 512 channels per program leaves 16 programs for 132 SMs, although the channels are independent; the
serial time loop of each is also made long by 64 exponentials a thread a step. Fix: BLOCK_D = 32, 256 programs."""

import torch
import triton
import triton.language as tl

B, L, D, NSTATE = 2, 2048, 4096, 16
BLOCK_D = 512


@triton.jit
def softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(x)))


@triton.jit
def scan_kernel(  # planted: launch-too-small
    x_ptr,
    dt_ptr,
    a_ptr,
    b_ptr,
    c_ptr,
    y_ptr,
    L,
    D,
    NSTATE: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    rd = tl.program_id(0) * BLOCK_D + tl.arange(0, BLOCK_D)
    batch = tl.program_id(1)
    rs = tl.arange(0, NSTATE)
    a = tl.load(a_ptr + rd[:, None] * NSTATE + rs[None, :])
    h = tl.zeros((BLOCK_D, NSTATE), tl.float32)
    for t in range(0, L):
        row = batch * L + t
        x = tl.load(x_ptr + row * D + rd).to(tl.float32)
        dt = softplus(tl.load(dt_ptr + row * D + rd).to(tl.float32))
        bt = tl.load(b_ptr + row * NSTATE + rs).to(tl.float32)
        ct = tl.load(c_ptr + row * NSTATE + rs).to(tl.float32)
        h = h * tl.exp(dt[:, None] * a) + (dt * x)[:, None] * bt[None, :]
        y = tl.sum(h * ct[None, :], axis=1)
        tl.store(y_ptr + row * D + rd, y.to(tl.bfloat16))


torch.manual_seed(0)
x = torch.randn(B, L, D, device="cuda", dtype=torch.bfloat16)
dt = torch.randn(B, L, D, device="cuda", dtype=torch.bfloat16) - 2.0
a = -torch.rand(D, NSTATE, device="cuda") * 4.0 - 0.1
bmat = torch.randn(B, L, NSTATE, device="cuda", dtype=torch.bfloat16)
cmat = torch.randn(B, L, NSTATE, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)

scan_kernel[(triton.cdiv(D, BLOCK_D), B)](x, dt, a, bmat, cmat, y, L, D, NSTATE, BLOCK_D=BLOCK_D, num_warps=4)

h = torch.zeros(B, D, NSTATE, device="cuda")
ref = torch.empty(B, L, D, device="cuda")
for t in range(L):
    step = torch.nn.functional.softplus(dt[:, t].float())
    h = h * torch.exp(step[..., None] * a) + (step * x[:, t].float())[..., None] * bmat[:, t, None, :].float()
    ref[:, t] = (h * cmat[:, t, None, :].float()).sum(-1)
torch.testing.assert_close(y.float(), ref, rtol=2e-2, atol=2e-2)
