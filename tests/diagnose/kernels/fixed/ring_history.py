"""Reads a robot's ring buffer of 8-bit sensor frames out in the order of time, the oldest frame first."""

import torch
import triton
import triton.language as tl

FRAMES = 131072
CHANNELS = 4096
HEAD = 12345


@triton.jit
def ring_history(ring_ptr, out_ptr, head, FRAMES: tl.constexpr, CHANNELS: tl.constexpr):
    frame = tl.program_id(0)
    channel = tl.arange(0, CHANNELS)
    value = tl.load(ring_ptr + ((head + frame) & (FRAMES - 1)) * CHANNELS + channel)
    tl.store(out_ptr + frame * CHANNELS + channel, value)


torch.manual_seed(0)
ring = torch.randint(0, 256, (FRAMES, CHANNELS), device="cuda", dtype=torch.uint8)
out = torch.empty_like(ring)

ring_history[(FRAMES,)](ring, out, HEAD, FRAMES=FRAMES, CHANNELS=CHANNELS, num_warps=8)

torch.testing.assert_close(out, ring.roll(-HEAD, dims=0))
