"""Expansion of a run-length code: a million runs of 1 to 127 equal words each.

A program takes 32 runs, a row of its tile each. Half of the lanes are masked off in the mean, but the words of a run
lie next to each other, each is written once, and the 268 MB that are written are what the time goes to.
"""

import torch
import triton
import triton.language as tl

RUNS = 1048576
LONGEST = 128


@triton.jit
def rle_expand(value_ptr, start_ptr, out_ptr, LONGEST: tl.constexpr, BLOCK: tl.constexpr):
    run = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(value_ptr + run)
    start = tl.load(start_ptr + run)
    length = tl.load(start_ptr + run + 1) - start
    i = tl.arange(0, LONGEST)
    word = tl.broadcast_to(value[:, None], (BLOCK, LONGEST))
    tl.store(out_ptr + start[:, None] + i[None, :], word, mask=i[None, :] < length[:, None])


torch.manual_seed(0)
length = torch.randint(1, LONGEST, (RUNS,), device="cuda")
value = torch.randint(-(2**31), 2**31, (RUNS,), device="cuda", dtype=torch.int32)
start = torch.zeros(RUNS + 1, device="cuda", dtype=torch.int32)
start[1:] = length.cumsum(0)
out = torch.empty(int(start[-1]), device="cuda", dtype=torch.int32)

rle_expand[(RUNS // 32,)](value, start, out, LONGEST=LONGEST, BLOCK=32, num_warps=4)

torch.testing.assert_close(out, torch.repeat_interleave(value, length))
