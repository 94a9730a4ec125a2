"""Cyclic time features: sin and cos of unix timestamps (float64 seconds) at 16 periods, as bf16.
The phase t / period mod 1 needs float64 (1.7e9 s against a period of minutes is more than a float's 24 bits); once
reduced to one cycle the rest is float32."""

import torch
import triton
import triton.language as tl

NT, NP = 4 * 1024 * 1024, 16


@triton.jit
def phase_kernel(t_ptr, f_ptr, out_ptr, n, NP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    p = tl.arange(0, NP)
    mask = i < n
    t = tl.load(t_ptr + i, mask=mask, other=0.0)
    f = tl.load(f_ptr + p)
    cycles = t[:, None] * f[None, :]
    x = (cycles - tl.floor(cycles)).to(tl.float32) * 6.283185307179586
    out = out_ptr + i.to(tl.int64)[:, None] * (2 * NP) + p[None, :]
    tl.store(out, tl.sin(x).to(tl.bfloat16), mask=mask[:, None])
    tl.store(out + NP, tl.cos(x).to(tl.bfloat16), mask=mask[:, None])


torch.manual_seed(0)
t = 1.7e9 + torch.rand(NT, device="cuda", dtype=torch.float64) * 3e7
period = torch.logspace(2, 7.5, NP, device="cuda", dtype=torch.float64)
freq = 1.0 / period
out = torch.empty(NT, 2 * NP, device="cuda", dtype=torch.bfloat16)

phase_kernel[(triton.cdiv(NT, 128),)](t, freq, out, NT, NP, BLOCK=128, num_warps=4)

cycles = t[:, None] * freq[None, :]
angle = (cycles - cycles.floor()) * 6.283185307179586
torch.testing.assert_close(out.float(), torch.cat((angle.sin(), angle.cos()), dim=1).float(), rtol=1e-2, atol=5e-3)
