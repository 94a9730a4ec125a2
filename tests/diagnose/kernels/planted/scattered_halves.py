"""Gradients of an embedding, of which each element is added where its index says."""

import torch
import triton
import triton.language as tl


@triton.jit
def scatter(x, index, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    where = tl.load(index + i, mask=mask)
    tl.atomic_add(out + where, tl.load(x + i, mask=mask), mask=mask)  # planted: emulated-atomics


n = 1 << 24
x = torch.ones(n, device="cuda", dtype=torch.bfloat16)
index = torch.randint(0, n, (n,), device="cuda")
out = torch.zeros(n, device="cuda", dtype=torch.bfloat16)
scatter[(triton.cdiv(n, 1024),)](x, index, out, n, 1024)
expected = torch.bincount(index, minlength=n)
torch.testing.assert_close(out.float(), expected.float())
