"""Shift of the frequency of a radio signal: interleaved complex samples times a rotating phase.

Each sample has a phase of its own, kept as a fraction of a turn in 32 bits that wrap, so that the cosine and the sine
are of new angles everywhere; they hide behind 537 MB in and out.
"""

import math

import torch
import triton
import triton.language as tl

SAMPLES = 33554432


@triton.jit
def iq_mixer(x_ptr, out_ptr, step, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = 2 * n[:, None] + tl.arange(0, 2)[None, :]
    re, im = tl.split(tl.load(x_ptr + at))
    angle = (n * step).to(tl.float32) * (3.141592653589793 / 2147483648.0)
    c = tl.cos(angle)
    s = tl.sin(angle)
    tl.store(out_ptr + at, tl.join(re * c - im * s, re * s + im * c))


torch.manual_seed(0)
step = 123456789
x = torch.randn(SAMPLES, 2, device="cuda")
out = torch.empty_like(x)

iq_mixer[(SAMPLES // 1024,)](x, out, step, BLOCK=1024, num_warps=4)

turn = (torch.arange(SAMPLES, device="cuda") * step) % 2**32
angle = (turn.double() * (2 * math.pi / 2**32)).float()
want = torch.stack((x[:, 0] * angle.cos() - x[:, 1] * angle.sin(), x[:, 0] * angle.sin() + x[:, 1] * angle.cos()), 1)
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
