"""A microphone array: each of 64 beams weights and adds the samples of 64 microphones. All beams in one program."""

import torch
import triton
import triton.language as tl

BEAMS = 64
MICROPHONES = 64
SAMPLES = 524288


@triton.jit
def array_beams(w_ptr, x_ptr, y_ptr, SAMPLES, BEAMS: tl.constexpr, MICROPHONES: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    beam, microphone = tl.arange(0, BEAMS), tl.arange(0, MICROPHONES)
    w = tl.load(w_ptr + beam[:, None] * MICROPHONES + microphone[None, :])
    x = tl.load(x_ptr + microphone[:, None] * SAMPLES + t[None, :], mask=t[None, :] < SAMPLES, other=0.0)
    y = tl.dot(w, x)
    tl.store(y_ptr + beam[:, None] * SAMPLES + t[None, :], y.to(tl.float16), mask=t[None, :] < SAMPLES)


torch.manual_seed(0)
w = torch.randn(BEAMS, MICROPHONES, device="cuda", dtype=torch.float16) / 8
x = torch.randn(MICROPHONES, SAMPLES, device="cuda", dtype=torch.float16)
y = torch.empty(BEAMS, SAMPLES, device="cuda", dtype=torch.float16)
BLOCK = 128
array_beams[(triton.cdiv(SAMPLES, BLOCK),)](w, x, y, SAMPLES, BEAMS, MICROPHONES, BLOCK, num_warps=4)
torch.testing.assert_close(y.float(), w.float() @ x.float(), rtol=2e-3, atol=4e-3)
