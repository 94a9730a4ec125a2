"""Calibration of 16 exposures of a camera of 4096 x 4096 pixels: bias, dark current and flat field.

Fault: the grid runs over the pixels of one exposure after another, and each program loads three maps for its pixels:
the maps are 201 MB, more than L2 holds, so that they come out of memory again for each of the 16 exposures.
Fix: a program goes through all exposures of its pixels and loads the maps once: 1.3 GB in all in place of 4.3.
"""

import torch
import triton
import triton.language as tl

PIXELS = 16777216
FRAMES = 16


@triton.jit
def flat_field(
    raw_ptr, bias_ptr, dark_ptr, gain_ptr, seconds_ptr, out_ptr, PIXELS, FRAMES: tl.constexpr, BLOCK: tl.constexpr
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)  # planted: program-order
    frame = tl.program_id(1)
    bias = tl.load(bias_ptr + pixel)
    dark = tl.load(dark_ptr + pixel)
    gain = tl.load(gain_ptr + pixel)
    seconds = tl.load(seconds_ptr + frame)
    raw = tl.load(raw_ptr + frame * PIXELS + pixel).to(tl.float32)
    tl.store(out_ptr + frame * PIXELS + pixel, ((raw - bias - dark * seconds) * gain).to(tl.float16))


torch.manual_seed(0)
raw = torch.randint(0, 4096, (FRAMES, PIXELS), device="cuda", dtype=torch.int16)
bias = torch.rand(PIXELS, device="cuda") * 64
dark = torch.rand(PIXELS, device="cuda")
gain = torch.rand(PIXELS, device="cuda") + 0.5
seconds = torch.rand(FRAMES, device="cuda") * 60
out = torch.empty(FRAMES, PIXELS, device="cuda", dtype=torch.float16)

flat_field[(PIXELS // 1024, FRAMES)](
    raw, bias, dark, gain, seconds, out, PIXELS, FRAMES=FRAMES, BLOCK=1024, num_warps=4
)

for frame in range(FRAMES):
    want = (raw[frame].float() - bias - dark * seconds[frame]) * gain
    torch.testing.assert_close(out[frame].float(), want, rtol=2e-3, atol=2e-2)
