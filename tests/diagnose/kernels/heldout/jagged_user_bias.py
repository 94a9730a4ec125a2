"""Adds a vector per user to each of the user's events: 4096 users, jagged sequences of up to 4096 events, 128 wide.

Fault: the grid is (users, longest / 32) as if all sequences were as long as the longest. Of 524288 programs some 10000
have events; the others load two offsets, wait for them and end. At 16 programs per multiprocessor and about 1 us each
they take 250 us. The events there are move 130 MB, 40 us.
Fix: eight programs per user, each of which steps through the blocks of its user: 32768 programs.
"""

import torch
import triton
import triton.language as tl

USERS = 4096
LONGEST = 4096
WIDTH = 128


@triton.jit
def jagged_user_bias(
    x_ptr, offset_ptr, bias_ptr, y_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr
):  # planted: early-return
    user = tl.program_id(0)
    begin = tl.load(offset_ptr + user)
    end = tl.load(offset_ptr + user + 1)
    first = begin + tl.program_id(1) * BLOCK
    if first >= end:
        return
    cols = tl.arange(0, WIDTH)
    event = first + tl.arange(0, BLOCK)
    at = event[:, None] * WIDTH + cols[None, :]
    mask = (event < end)[:, None]
    bias = tl.load(bias_ptr + user * WIDTH + cols).to(tl.float32)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + at, (x + bias[None, :]).to(tl.bfloat16), mask=mask)


torch.manual_seed(0)
length = (torch.empty(USERS, device="cuda").exponential_() * 64).long().clamp(1, LONGEST)
length[USERS // 3] = LONGEST
offset = torch.zeros(USERS + 1, device="cuda", dtype=torch.int32)
offset[1:] = length.cumsum(0)
events = int(offset[-1])
x = torch.randn(events, WIDTH, device="cuda", dtype=torch.bfloat16)
bias = torch.randn(USERS, WIDTH, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)

jagged_user_bias[(USERS, triton.cdiv(LONGEST, 32))](x, offset, bias, y, WIDTH=WIDTH, BLOCK=32, num_warps=4)

want = x.float() + bias.float().repeat_interleave(length, dim=0)
torch.testing.assert_close(y.float(), want, rtol=1e-2, atol=1e-2)
