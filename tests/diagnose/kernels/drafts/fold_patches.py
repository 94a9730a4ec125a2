"""Patches of 64 x 64 pixels put back into an image of 8192 x 8192, fp32: the backward pass of a patch embedding's unfold.

Fault: the patches are added by atomics, as patches that overlap have to be. These lie side by side (the stride is the
patch's length), so each pixel is added to once: L2 reads and writes it, after another kernel has set it to 0.
Fix: store the patches.
"""

import torch
import triton
import triton.language as tl

SIDE, PATCH = 8192, 64


@triton.jit
def fold(x_ptr, out_ptr, SIDE: tl.constexpr, PATCH: tl.constexpr, STRIDE: tl.constexpr):
    r = tl.arange(0, PATCH)[:, None]
    c = tl.arange(0, PATCH)[None, :]
    across = (SIDE - PATCH) // STRIDE + 1
    patch = tl.program_id(1) * across + tl.program_id(0)
    x = tl.load(x_ptr + patch * PATCH * PATCH + r * PATCH + c)
    at = (tl.program_id(1) * STRIDE + r) * SIDE + tl.program_id(0) * STRIDE + c
    tl.atomic_add(out_ptr + at, x, sem="relaxed")  # planted: needless-atomics


torch.manual_seed(0)
x = torch.randn((SIDE // PATCH) ** 2, PATCH * PATCH, device="cuda")
out = torch.zeros(SIDE, SIDE, device="cuda")

fold[(SIDE // PATCH, SIDE // PATCH)](x, out, SIDE, PATCH, STRIDE=PATCH, num_warps=4)

tiles = x.view(SIDE // PATCH, SIDE // PATCH, PATCH, PATCH).transpose(1, 2)
torch.testing.assert_close(out, tiles.reshape(SIDE, SIDE))
