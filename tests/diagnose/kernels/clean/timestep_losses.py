"""Sums of the losses of a diffusion model over each quarter of its timesteps, and how many there are.

The atomics are eight for each of 792 programs, after a loop that keeps its sums in registers and goes over the 268 MB
once. Each loss is compared with four quarters, which costs next to nothing beside its load.
"""

import torch
import triton
import triton.language as tl

SIZE = 33554432
PROGRAMS = 792


@triton.jit
def timestep_losses(loss_ptr, step_ptr, sum_ptr, count_ptr, size, BLOCK: tl.constexpr, QUARTER: tl.constexpr):
    sums_0 = tl.zeros((BLOCK,), tl.float32)
    sums_1 = tl.zeros((BLOCK,), tl.float32)
    sums_2 = tl.zeros((BLOCK,), tl.float32)
    sums_3 = tl.zeros((BLOCK,), tl.float32)
    # two counts of 16 bits in a word
    low = tl.zeros((BLOCK,), tl.int32)
    high = tl.zeros((BLOCK,), tl.int32)
    for start in range(tl.program_id(0) * BLOCK, size, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        loss = tl.load(loss_ptr + i)
        quarter = tl.load(step_ptr + i) // QUARTER
        sums_0 += tl.where(quarter == 0, loss, 0.0)
        sums_1 += tl.where(quarter == 1, loss, 0.0)
        sums_2 += tl.where(quarter == 2, loss, 0.0)
        sums_3 += tl.where(quarter == 3, loss, 0.0)
        low += tl.where(quarter == 0, 1, tl.where(quarter == 1, 65536, 0))
        high += tl.where(quarter == 2, 1, tl.where(quarter == 3, 65536, 0))
    tl.atomic_add(sum_ptr, tl.sum(sums_0), sem="relaxed")
    tl.atomic_add(sum_ptr + 1, tl.sum(sums_1), sem="relaxed")
    tl.atomic_add(sum_ptr + 2, tl.sum(sums_2), sem="relaxed")
    tl.atomic_add(sum_ptr + 3, tl.sum(sums_3), sem="relaxed")
    tl.atomic_add(count_ptr, tl.sum(low & 65535), sem="relaxed")
    tl.atomic_add(count_ptr + 1, tl.sum(low >> 16), sem="relaxed")
    tl.atomic_add(count_ptr + 2, tl.sum(high & 65535), sem="relaxed")
    tl.atomic_add(count_ptr + 3, tl.sum(high >> 16), sem="relaxed")


torch.manual_seed(0)
loss = torch.rand(SIZE, device="cuda")
step = torch.randint(0, 1000, (SIZE,), device="cuda", dtype=torch.int32)
sums = torch.zeros(4, device="cuda")
counts = torch.zeros(4, device="cuda", dtype=torch.int32)

timestep_losses[(PROGRAMS,)](loss, step, sums, counts, SIZE, BLOCK=1024, QUARTER=250, num_warps=4)

quarter = step // 250
for q in range(4):
    assert int(counts[q]) == int((quarter == q).sum())
    torch.testing.assert_close(sums[q].double(), loss[quarter == q].double().sum(), rtol=1e-4, atol=1e-3)
