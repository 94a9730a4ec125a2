"""Running sum of two million counts in one launch: a block takes what comes before it from the blocks before.

Fault: a block waits for the sum of all blocks before it, and only then loads and adds its own values; the load, the
sum and the wait of 512 blocks form one chain of some 2 us a link, 1 ms for 17 MB.
Fix: load and sum first, publish the block's own sum at once, and add up the sums of the blocks before until one of them
knows its total.
"""

import torch
import triton
import triton.language as tl

N = 1 << 21


@triton.jit
def inclusive_scan(x_ptr, out_ptr, state_ptr, BLOCK: tl.constexpr):
    # a word of the state holds a sum and in its low two bits what it is: 1 of the block alone, 2 of all up to it
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    before = tl.full((), 0, tl.int64)
    if pid > 0:
        word = tl.atomic_add(state_ptr + pid - 1, 0)
        while word == 0:  # planted: serial-chain
            word = tl.atomic_add(state_ptr + pid - 1, 0)
        before = word >> 2
        tl.atomic_xchg(state_ptr + pid - 1, 0)  # ready for the next launch
    x = tl.load(x_ptr + i)
    if pid < tl.num_programs(0) - 1:
        tl.atomic_xchg(state_ptr + pid, ((before + tl.sum(x, axis=0)) << 2) | 2)
    tl.store(out_ptr + i, before.to(tl.int32) + tl.cumsum(x, axis=0))


torch.manual_seed(0)
x = torch.randint(0, 50, (N,), device="cuda", dtype=torch.int32)
out = torch.empty_like(x)
state = torch.zeros(N // 4096, device="cuda", dtype=torch.int64)

inclusive_scan[(N // 4096,)](x, out, state, BLOCK=4096, num_warps=8)

torch.testing.assert_close(out, x.cumsum(0).int())
