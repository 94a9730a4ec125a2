"""Linearity correction of a detector: a polynomial of 16 coefficients for each pixel, evaluated at its signal.

Fault: a lane has a pixel and walks its coefficients, so that the lanes of a warp read addresses 64 bytes apart: each
of the 16 loads touches 32 sectors, all of them again for the next ones, and L1 serves 16 lines for each.
Fix: read pixels x coefficients as one tile, as they lie in memory, and sum the terms along its rows.
"""

import torch
import triton
import triton.language as tl

PIXELS = 4194304
TERMS = 16


@triton.jit
def pixel_linearity(signal_ptr, coef_ptr, out_ptr, TERMS: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(signal_ptr + pixel)
    acc = tl.zeros((BLOCK,), tl.float32)
    for k in range(TERMS):
        acc = acc * x + tl.load(coef_ptr + pixel * TERMS + (TERMS - 1 - k))  # planted: uncoalesced-access
    tl.store(out_ptr + pixel, acc)


torch.manual_seed(0)
signal = torch.rand(PIXELS, device="cuda") * 0.9 + 0.05
coef = torch.randn(PIXELS, TERMS, device="cuda")
out = torch.empty_like(signal)

pixel_linearity[(PIXELS // 256,)](signal, coef, out, TERMS=TERMS, BLOCK=256, num_warps=4)

want = torch.zeros_like(signal)
for k in reversed(range(TERMS)):
    want = want * signal + coef[:, k]
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
