"""Weighted average of 8 bf16 checkpoints into an fp32 parameter buffer (model soup).
Fault: one launch per checkpoint accumulates into the fp32 buffer, which is therefore read and written 8 times: 10
bytes a parameter a checkpoint where 2 would do. Fix: one launch that loops over the checkpoints inside the kernel,
keeps the sum in registers and writes it once."""

import torch
import triton
import triton.language as tl

NMODELS = 8
P = 64 * 1024 * 1024


@triton.jit
def soup_kernel(x_ptr, w_ptr, out_ptr, P, NMODELS: tl.constexpr, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < P
    acc = tl.load(out_ptr + offs, mask=mask, other=0.0)  # planted: repeated-launch
    for i in tl.static_range(NMODELS):
        w = tl.load(w_ptr + i)
        x = tl.load(x_ptr + i * P + offs, mask=mask, other=0.0)
        acc += w * x.to(tl.float32)
    tl.store(out_ptr + offs, acc, mask=mask)


torch.manual_seed(0)
params = torch.randn(NMODELS, P, device="cuda", dtype=torch.bfloat16)
weights = torch.softmax(torch.randn(NMODELS, device="cuda"), dim=0)
out = torch.zeros(P, device="cuda")

for i in range(NMODELS):
    soup_kernel[(triton.cdiv(P, 2048),)](params[i:], weights[i:], out, P, NMODELS=1, BLOCK=2048, num_warps=8)

ref = torch.zeros_like(out)
for i in range(NMODELS):
    ref += weights[i] * params[i].float()
torch.testing.assert_close(out, ref, rtol=1e-4, atol=1e-5)
