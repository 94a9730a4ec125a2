"""Calibration of 16 exposures of a camera of 4096 x 4096 pixels: bias, dark current and flat field."""

import torch
import triton
import triton.language as tl

PIXELS = 16777216
FRAMES = 16


@triton.jit
def flat_field(
    raw_ptr, bias_ptr, dark_ptr, gain_ptr, seconds_ptr, out_ptr, PIXELS, FRAMES: tl.constexpr, BLOCK: tl.constexpr
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bias = tl.load(bias_ptr + pixel)
    dark = tl.load(dark_ptr + pixel)
    gain = tl.load(gain_ptr + pixel)
    for frame in range(FRAMES):
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

flat_field[(PIXELS // 1024,)](raw, bias, dark, gain, seconds, out, PIXELS, FRAMES=FRAMES, BLOCK=1024, num_warps=4)

for frame in range(FRAMES):
    want = (raw[frame].float() - bias - dark * seconds[frame]) * gain
    torch.testing.assert_close(out[frame].float(), want, rtol=2e-3, atol=2e-2)
