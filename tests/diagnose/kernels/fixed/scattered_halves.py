"""Gradients of an embedding, added in float32 where the index says, and converted by a kernel that follows."""

import torch
import triton
import triton.language as tl


@triton.jit
def scatter(x, index, sums, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    where = tl.load(index + i, mask=mask)
    tl.atomic_add(sums + where, tl.load(x + i, mask=mask).to(tl.float32), mask=mask)


@triton.jit
def convert(sums, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    tl.store(out + i, tl.load(sums + i, mask=mask).to(tl.bfloat16), mask=mask)


n = 1 << 24
x = torch.ones(n, device="cuda", dtype=torch.bfloat16)
index = torch.randint(0, n, (n,), device="cuda")
sums = torch.zeros(n, device="cuda")
out = torch.zeros(n, device="cuda", dtype=torch.bfloat16)
scatter[(triton.cdiv(n, 1024),)](x, index, sums, n, 1024)
convert[(triton.cdiv(n, 1024),)](sums, out, n, 1024)
expected = torch.bincount(index, minlength=n)
torch.testing.assert_close(out.float(), expected.float())
