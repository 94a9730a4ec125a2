"""Linearity correction of a detector: a polynomial of 16 coefficients for each pixel, evaluated at its signal."""

import torch
import triton
import triton.language as tl

PIXELS = 4194304
TERMS = 16


@triton.jit
def pixel_linearity(signal_ptr, coef_ptr, out_ptr, TERMS: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    k = tl.arange(0, TERMS)
    x = tl.load(signal_ptr + pixel)
    coef = tl.load(coef_ptr + pixel[:, None] * TERMS + k[None, :])
    # the signal is above zero
    power = tl.exp2(tl.log2(x)[:, None] * k[None, :].to(tl.float32))
    tl.store(out_ptr + pixel, tl.sum(coef * power, axis=1))


torch.manual_seed(0)
signal = torch.rand(PIXELS, device="cuda") * 0.9 + 0.05
coef = torch.randn(PIXELS, TERMS, device="cuda")
out = torch.empty_like(signal)

pixel_linearity[(PIXELS // 256,)](signal, coef, out, TERMS=TERMS, BLOCK=256, num_warps=4)

want = torch.zeros_like(signal)
for k in reversed(range(TERMS)):
    want = want * signal + coef[:, k]
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
