"""Length regulator of a speech synthesiser: repeats each phoneme's hidden vector for as many frames as it lasts."""

import torch
import triton
import triton.language as tl

BATCH = 32
PHONEMES = 1024
FRAMES = 4096
HIDDEN = 384
BLOCK_T = 128
BLOCK_H = 128


@triton.jit
def length_regulator(
    hidden_ptr,
    end_ptr,
    frame_ptr,
    PHONEMES: tl.constexpr,
    FRAMES: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_H: tl.constexpr,
    STEPS: tl.constexpr,
):
    t = tl.program_id(0) * BLOCK_T + tl.arange(0, BLOCK_T)
    h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    batch = tl.program_id(2)
    low = tl.zeros((BLOCK_T,), tl.int32)
    high = tl.full((BLOCK_T,), PHONEMES - 1, tl.int32)
    for _ in tl.static_range(STEPS):
        middle = (low + high) // 2
        over = tl.load(end_ptr + batch * PHONEMES + middle) <= t
        low = tl.where(over, middle + 1, low)
        high = tl.where(over, high, middle)
    hidden = tl.load(hidden_ptr + (batch * PHONEMES + low)[:, None] * HIDDEN + h[None, :])
    tl.store(frame_ptr + (batch * FRAMES + t)[:, None] * HIDDEN + h[None, :], hidden)


torch.manual_seed(0)
end = torch.randint(0, FRAMES + 1, (BATCH, PHONEMES), device="cuda", dtype=torch.int32).sort(dim=1).values
end[:, -1] = FRAMES
start = torch.nn.functional.pad(end[:, :-1], (1, 0)).contiguous()
hidden = torch.randn(BATCH, PHONEMES, HIDDEN, device="cuda", dtype=torch.float16)
frame = torch.empty(BATCH, FRAMES, HIDDEN, device="cuda", dtype=torch.float16)

length_regulator[(FRAMES // BLOCK_T, HIDDEN // BLOCK_H, BATCH)](
    hidden,
    end,
    frame,
    PHONEMES=PHONEMES,
    FRAMES=FRAMES,
    HIDDEN=HIDDEN,
    BLOCK_T=BLOCK_T,
    BLOCK_H=BLOCK_H,
    STEPS=PHONEMES.bit_length(),
    num_warps=4,
)

for i in range(BATCH):
    torch.testing.assert_close(frame[i], hidden[i].repeat_interleave((end[i] - start[i]).long(), dim=0))
