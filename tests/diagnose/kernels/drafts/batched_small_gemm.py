"""Batch of small matrix products, 64 x 64 x 64 in fp16, one program per batch entry.
Fault: the product is built from rank-1 updates, a column of A times a row of B per step: all of it on the scalar FMA
pipe, with two loads in each of the 64 dependent steps and column loads of stride 64. Fix: load both tiles whole and
call tl.dot, which 64 x 64 x 64 is big enough for."""

import torch
import triton
import triton.language as tl

NBATCH, S = 16384, 64


@triton.jit
def bmm_kernel(a_ptr, b_ptr, c_ptr, S: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * S * S
    r = tl.arange(0, S)
    acc = tl.zeros((S, S), tl.float32)
    for k in range(0, S):
        a = tl.load(a_ptr + base + r * S + k).to(tl.float32)
        b = tl.load(b_ptr + base + k * S + r).to(tl.float32)
        acc += a[:, None] * b[None, :]  # planted: dot-by-hand
    tl.store(c_ptr + base + r[:, None] * S + r[None, :], acc.to(tl.float16))


torch.manual_seed(0)
a = torch.randn(NBATCH, S, S, device="cuda", dtype=torch.float16)
b = torch.randn(NBATCH, S, S, device="cuda", dtype=torch.float16)
c = torch.empty_like(a)

bmm_kernel[(NBATCH,)](a, b, c, S, num_warps=4)

torch.testing.assert_close(c.float(), torch.bmm(a.float(), b.float()), rtol=1e-2, atol=2e-2)
