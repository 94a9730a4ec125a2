"""A microphone array: each of 64 beams weights and adds the samples of 64 microphones.

Fault: one beam per program. All 64 beams need the same samples, so each tile of samples comes from L2 64 times, and
the weighted sums run on the FMA units with a conversion to float32 in each of the 64 programs.
Fix: all beams in one program, which loads a tile of samples once and multiplies it by all weights with tl.dot.
"""

import torch
import triton
import triton.language as tl

BEAMS = 64
MICROPHONES = 64
SAMPLES = 524288


@triton.jit
def array_beams(w_ptr, x_ptr, y_ptr, SAMPLES, MICROPHONES: tl.constexpr, BLOCK: tl.constexpr):
    beam = tl.program_id(0)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    microphone = tl.arange(0, MICROPHONES)
    w = tl.load(w_ptr + beam * MICROPHONES + microphone).to(tl.float32)
    x = tl.load(x_ptr + microphone[:, None] * SAMPLES + t[None, :], mask=t[None, :] < SAMPLES, other=0.0)
    y = tl.sum(w[:, None] * x.to(tl.float32), axis=0)  # planted: dot-by-hand
    tl.store(y_ptr + beam * SAMPLES + t, y.to(tl.float16), mask=t < SAMPLES)


torch.manual_seed(0)
w = torch.randn(BEAMS, MICROPHONES, device="cuda", dtype=torch.float16) / 8
x = torch.randn(MICROPHONES, SAMPLES, device="cuda", dtype=torch.float16)
y = torch.empty(BEAMS, SAMPLES, device="cuda", dtype=torch.float16)
BLOCK = 128
array_beams[(BEAMS, triton.cdiv(SAMPLES, BLOCK))](w, x, y, SAMPLES, MICROPHONES, BLOCK, num_warps=4)
torch.testing.assert_close(y.float(), w.float() @ x.float(), rtol=2e-3, atol=4e-3)
