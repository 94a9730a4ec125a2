"""Structure factors of a chain of scatterers, F(h) = sum over j of s_j exp(2 pi i h x_j), for h = 0 ... MODES - 1.

Fault: a sine and a cosine are computed for each pair of mode and scatterer, 540 million pairs, some 80 instructions
each.
Fix: h = 64 a + b, so the exponential is a product of one that depends on a and one that depends on b: 128 pairs of sine
and cosine a scatterer, and the sum over scatterers becomes a small matrix product.
"""

import math

import torch
import triton
import triton.language as tl

SCATTERERS = 131072
MODES = 4096
PARTS = 32


@triton.jit
def structure_factor(
    x_ptr, s_ptr, re_ptr, im_ptr, TURN: tl.constexpr, PART: tl.constexpr, BLOCK_H: tl.constexpr, BLOCK_J: tl.constexpr
):
    h = tl.program_id(0) * BLOCK_H + tl.arange(0, BLOCK_H)
    first = tl.program_id(1) * PART
    re = tl.zeros((BLOCK_H, BLOCK_J), tl.float32)
    im = tl.zeros((BLOCK_H, BLOCK_J), tl.float32)
    for start in range(0, PART, BLOCK_J):
        j = first + start + tl.arange(0, BLOCK_J)
        turns = h.to(tl.float32)[:, None] * tl.load(x_ptr + j)[None, :]
        angle = (turns - tl.floor(turns)) * TURN
        s = tl.load(s_ptr + j)[None, :]
        re += s * tl.cos(angle)  # planted: trig-per-pair
        im += s * tl.sin(angle)
    tl.atomic_add(re_ptr + h, tl.sum(re, axis=1), sem="relaxed")
    tl.atomic_add(im_ptr + h, tl.sum(im, axis=1), sem="relaxed")


torch.manual_seed(0)
x = torch.rand(SCATTERERS, device="cuda")
s = torch.randn(SCATTERERS, device="cuda")
re = torch.zeros(MODES, device="cuda")
im = torch.zeros(MODES, device="cuda")

structure_factor[(MODES // 64, PARTS)](
    x, s, re, im, TURN=2 * math.pi, PART=SCATTERERS // PARTS, BLOCK_H=64, BLOCK_J=64, num_warps=8
)

for h in range(0, MODES, 64):
    modes = torch.arange(h, h + 64, device="cuda", dtype=torch.float64)
    angle = 2 * math.pi * modes[:, None] * x.double()
    size = SCATTERERS**0.5
    torch.testing.assert_close(re[h : h + 64] / size, (angle.cos() @ s.double() / size).float(), atol=1e-2, rtol=0)
    torch.testing.assert_close(im[h : h + 64] / size, (angle.sin() @ s.double() / size).float(), atol=1e-2, rtol=0)
