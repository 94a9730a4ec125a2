"""SELECT key, SUM(amount), COUNT(*) GROUP BY key over a column store, with one atomic add a row and aggregate.

Fault: the adds have the default order, acquire-release: each is a fence, the atomic, and an invalidation of L1, and a
thread's next add waits for the one before it. Nobody reads the sums before the kernel ends.
Fix: sem="relaxed", which makes them reductions that the thread fires and forgets.
"""

import torch
import triton
import triton.language as tl

ROWS = 16777216
GROUPS = 1048576


@triton.jit
def group_by_sum(key_ptr, amount_ptr, sum_ptr, count_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    key = tl.load(key_ptr + i)
    amount = tl.load(amount_ptr + i)
    tl.atomic_add(sum_ptr + key, amount)  # planted: ordered-atomics
    tl.atomic_add(count_ptr + key, 1)


torch.manual_seed(0)
key = torch.randint(0, GROUPS, (ROWS,), device="cuda", dtype=torch.int32)
amount = torch.rand(ROWS, device="cuda")
total = torch.zeros(GROUPS, device="cuda")
count = torch.zeros(GROUPS, device="cuda", dtype=torch.int32)

group_by_sum[(ROWS // 1024,)](key, amount, total, count, BLOCK=1024, num_warps=4)

want = torch.zeros(GROUPS, device="cuda").index_add_(0, key, amount)
torch.testing.assert_close(total, want, atol=1e-3, rtol=1e-4)
torch.testing.assert_close(count, torch.bincount(key, minlength=GROUPS).int())
