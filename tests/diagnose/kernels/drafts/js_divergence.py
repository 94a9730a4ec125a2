"""Jensen-Shannon divergence per row between two sets of bf16 log-probabilities (self-distillation loss).
Fault: the inputs are widened to float64 "for a safe sum", so two exponentials and a logarithm per element run as long
software sequences on the fp64 pipe, where bf16 inputs hold 8 bits. Fix: widen to float32."""

import torch
import triton
import triton.language as tl

R, N = 8192, 8192


@triton.jit
def js_kernel(p_ptr, q_ptr, out_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, N, BLOCK):
        cols = start + tl.arange(0, BLOCK)
        mask = cols < N
        logp = tl.load(p_ptr + row * N + cols, mask=mask, other=-80.0).to(tl.float64)  # planted: float64
        logq = tl.load(q_ptr + row * N + cols, mask=mask, other=-80.0).to(logp.dtype)
        p = tl.exp(logp)
        q = tl.exp(logq)
        logm = tl.log(0.5 * (p + q))
        term = 0.5 * (p * (logp - logm) + q * (logq - logm))
        acc += term.to(tl.float32)
    tl.store(out_ptr + row, tl.sum(acc, axis=0))


torch.manual_seed(0)
logp = torch.log_softmax(torch.randn(R, N, device="cuda"), dim=1).to(torch.bfloat16)
logq = torch.log_softmax(torch.randn(R, N, device="cuda"), dim=1).to(torch.bfloat16)
out = torch.empty(R, device="cuda")

js_kernel[(R,)](logp, logq, out, N, BLOCK=2048, num_warps=8)

lp, lq = logp.float(), logq.float()
lm = torch.log(0.5 * (lp.exp() + lq.exp()))
ref = 0.5 * (lp.exp() * (lp - lm) + lq.exp() * (lq - lm)).sum(1)
torch.testing.assert_close(out, ref, rtol=1e-3, atol=1e-5)
