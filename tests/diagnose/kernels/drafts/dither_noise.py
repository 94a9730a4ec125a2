"""Adds uniform noise of one quantisation step to the latents of a diffusion model before they are quantised.

Fault: the generator gives four numbers at a time, but each element runs all of its ten rounds and takes one of the
four: four times the integer multiplications that are needed, in a kernel that should wait for memory.
Fix: the offset is a multiple of four, so run the generator once for four neighbours and interleave its four results.
"""

import torch
import triton
import triton.language as tl

ELEMENTS = 134217728
STEP = 0.125
SEED = 42
OFFSET = 1028


@triton.jit
def dither_noise(x_ptr, out_ptr, seed, offset, STEP: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    r0, r1, r2, r3 = tl.randint4x(seed, (offset + i) >> 2)  # planted: random-numbers
    which = (offset + i) & 3
    bits = tl.where(which == 0, r0, tl.where(which == 1, r1, tl.where(which == 2, r2, r3)))
    uniform = (bits & 0xFFFFFF).to(tl.float32) * (1.0 / 16777216)
    x = tl.load(x_ptr + i).to(tl.float32)
    tl.store(out_ptr + i, (x + (uniform - 0.5) * STEP).to(tl.float16))


torch.manual_seed(0)
x = torch.randn(ELEMENTS, device="cuda", dtype=torch.float16)
out = torch.empty(ELEMENTS, device="cuda", dtype=torch.float16)

dither_noise[(ELEMENTS // 2048,)](x, out, SEED, OFFSET, STEP=STEP, BLOCK=2048, num_warps=4)

noise = (out.float() - x.float()) / STEP
zero = torch.zeros((), device="cuda")
torch.testing.assert_close(noise.mean(), zero, atol=2e-2, rtol=0)
torch.testing.assert_close(noise.var(), zero + 1 / 12, atol=1e-2, rtol=0)
torch.testing.assert_close(noise.abs().clamp(max=0.5), noise.abs(), atol=2e-2, rtol=0)
