"""Length regulator of a speech synthesiser: repeats each phoneme's hidden vector for as many frames as it lasts.

Fault: a frame's vector is taken with the one-hot alignment matrix, frames x phonemes, as a matrix product: 100 GFLOP
of multiplications with zeros to copy 100 MB.
Fix: find the phoneme of each frame by bisection in the running sum of the durations, and gather its vector.
"""

import torch
import triton
import triton.language as tl

BATCH = 32
PHONEMES = 1024
FRAMES = 4096
HIDDEN = 384
BLOCK_T = 128
BLOCK_P = 64
BLOCK_H = 128


@triton.jit
def length_regulator(
    hidden_ptr,
    start_ptr,
    end_ptr,
    frame_ptr,
    PHONEMES: tl.constexpr,
    FRAMES: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_P: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    batch = tl.program_id(2)
    total = tl.zeros((BLOCK_T, BLOCK_H), tl.float32)
    for first in range(0, PHONEMES, BLOCK_P):
        p = batch * PHONEMES + first + tl.arange(0, BLOCK_P)
        start = tl.load(start_ptr + p)
        end = tl.load(end_ptr + p)
        hidden = tl.load(hidden_ptr + p[:, None] * HIDDEN + h[None, :])
        align = (t[:, None] >= start[None, :]) & (t[:, None] < end[None, :])
        total = tl.dot(align.to(tl.float16), hidden, total)  # planted: lookup-by-comparison
    tl.store(frame_ptr + (batch * FRAMES + t)[:, None] * HIDDEN + h[None, :], total.to(tl.float16))


torch.manual_seed(0)
end = torch.randint(0, FRAMES + 1, (BATCH, PHONEMES), device="cuda", dtype=torch.int32).sort(dim=1).values
end[:, -1] = FRAMES
start = torch.nn.functional.pad(end[:, :-1], (1, 0)).contiguous()
hidden = torch.randn(BATCH, PHONEMES, HIDDEN, device="cuda", dtype=torch.float16)
frame = torch.empty(BATCH, FRAMES, HIDDEN, device="cuda", dtype=torch.float16)

length_regulator[(FRAMES // BLOCK_T, HIDDEN // BLOCK_H, BATCH)](
    hidden,
    start,
    end,
    frame,
    PHONEMES=PHONEMES,
    FRAMES=FRAMES,
    HIDDEN=HIDDEN,
    BLOCK_T=BLOCK_T,
    BLOCK_P=BLOCK_P,
    BLOCK_H=BLOCK_H,
    num_warps=4,
    num_stages=3,
)

for i in range(BATCH):
    torch.testing.assert_close(frame[i], hidden[i].repeat_interleave((end[i] - start[i]).long(), dim=0))
