"""Reads a robot's ring buffer of 8-bit sensor frames out in the order of time, the oldest frame first.

Fault: the position in the ring is wrapped byte by byte with a bit mask, the usual idiom for a size that is a power of
two. The compiler no longer sees that neighbours are adjacent, and loads one byte at a time instead of 16.
Fix: wrap the frame's number, once a frame; within a frame the addresses are contiguous and aligned.
"""

import torch
import triton
import triton.language as tl

FRAMES = 131072
CHANNELS = 4096
HEAD = 12345


@triton.jit
def ring_history(ring_ptr, out_ptr, start, SIZE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(ring_ptr + ((start + i) & (SIZE - 1)))  # planted: narrow-access
    tl.store(out_ptr + i, value)


torch.manual_seed(0)
ring = torch.randint(0, 256, (FRAMES, CHANNELS), device="cuda", dtype=torch.uint8)
out = torch.empty_like(ring)

ring_history[(FRAMES * CHANNELS // 4096,)](ring, out, HEAD * CHANNELS, SIZE=FRAMES * CHANNELS, BLOCK=4096, num_warps=8)

torch.testing.assert_close(out, ring.roll(-HEAD, dims=0))
