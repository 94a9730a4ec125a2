"""Running sum of two million counts in one launch: a block takes what comes before it from the blocks before."""

import torch
import triton
import triton.language as tl

N = 1 << 21


@triton.jit
def inclusive_scan(x_ptr, out_ptr, state_ptr, BLOCK: tl.constexpr):
    # a word of the state holds a sum and in its low two bits what it is: 1 of the block alone, 2 of all up to it
    pid = tl.program_id(0)
    i = pid * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i)
    own = tl.sum(x, axis=0).to(tl.int64)
    tl.atomic_xchg(state_ptr + pid, (own << 2) | 1)
    before = tl.full((), 0, tl.int64)
    other = pid - 1
    while other >= 0:
        word = tl.atomic_add(state_ptr + other, 0)
        before += word >> 2
        known = word & 3
        other = tl.where(known == 2, -1, tl.where(known == 1, other - 1, other))
    tl.atomic_xchg(state_ptr + pid, ((before + own) << 2) | 2)
    tl.store(out_ptr + i, before.to(tl.int32) + tl.cumsum(x, axis=0))
    # the last block leaves the state as it was, ready for the next launch
    if tl.atomic_add(state_ptr + tl.num_programs(0), 1) == tl.num_programs(0) - 1:
        word = tl.arange(0, BLOCK)
        tl.store(state_ptr + word, tl.zeros((BLOCK,), tl.int64), mask=word <= tl.num_programs(0))


torch.manual_seed(0)
x = torch.randint(0, 50, (N,), device="cuda", dtype=torch.int32)
out = torch.empty_like(x)
state = torch.zeros(N // 4096 + 1, device="cuda", dtype=torch.int64)

inclusive_scan[(N // 4096,)](x, out, state, BLOCK=4096, num_warps=8)

torch.testing.assert_close(out, x.cumsum(0).int())
