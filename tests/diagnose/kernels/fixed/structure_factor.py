"""Structure factors of a chain of scatterers, F(h) = sum over j of s_j exp(2 pi i h x_j), for h = 0 ... MODES - 1."""

import math

import torch
import triton
import triton.language as tl

SCATTERERS = 131072
MODES = 4096
PARTS = 128


@triton.jit
def waves(h, x, TURN: tl.constexpr):
    turns = h.to(tl.float32)[:, None] * x[None, :]
    angle = (turns - tl.floor(turns)) * TURN
    return tl.cos(angle), tl.sin(angle)


@triton.jit
def structure_factor(
    x_ptr, s_ptr, re_ptr, im_ptr, TURN: tl.constexpr, PART: tl.constexpr, SIDE: tl.constexpr, BLOCK_J: tl.constexpr
):
    side = tl.arange(0, SIDE)
    first = tl.program_id(0) * PART
    re = tl.zeros((SIDE, SIDE), tl.float32)
    im = tl.zeros((SIDE, SIDE), tl.float32)
    for start in range(0, PART, BLOCK_J):
        j = first + start + tl.arange(0, BLOCK_J)
        x = tl.load(x_ptr + j)
        s = tl.load(s_ptr + j)[None, :]
        re_a, im_a = waves(SIDE * side, x, TURN)
        re_b, im_b = waves(side, x, TURN)
        re_a, im_a = (s * re_a).to(tl.float16), (s * im_a).to(tl.float16)
        re_b, im_b = re_b.to(tl.float16).T, im_b.to(tl.float16).T
        re = tl.dot(-im_a, im_b, tl.dot(re_a, re_b, re))
        im = tl.dot(im_a, re_b, tl.dot(re_a, im_b, im))
    h = side[:, None] * SIDE + side[None, :]
    tl.atomic_add(re_ptr + h, re, sem="relaxed")
    tl.atomic_add(im_ptr + h, im, sem="relaxed")


torch.manual_seed(0)
x = torch.rand(SCATTERERS, device="cuda")
s = torch.randn(SCATTERERS, device="cuda")
re = torch.zeros(MODES, device="cuda")
im = torch.zeros(MODES, device="cuda")

structure_factor[(PARTS,)](
    x, s, re, im, TURN=2 * math.pi, PART=SCATTERERS // PARTS, SIDE=math.isqrt(MODES), BLOCK_J=64, num_warps=8
)

for h in range(0, MODES, 64):
    modes = torch.arange(h, h + 64, device="cuda", dtype=torch.float64)
    angle = 2 * math.pi * modes[:, None] * x.double()
    size = SCATTERERS**0.5
    torch.testing.assert_close(re[h : h + 64] / size, (angle.cos() @ s.double() / size).float(), atol=1e-2, rtol=0)
    torch.testing.assert_close(im[h : h + 64] / size, (angle.sin() @ s.double() / size).float(), atol=1e-2, rtol=0)
