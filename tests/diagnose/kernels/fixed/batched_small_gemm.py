"""Batch of small matrix products, 64 x 64 x 64 in fp16, one program per batch entry."""

import torch
import triton
import triton.language as tl

NBATCH, S = 16384, 64


@triton.jit
def bmm_kernel(a_ptr, b_ptr, c_ptr, S: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * S * S
    r = tl.arange(0, S)
    a = tl.load(a_ptr + base + r[:, None] * S + r[None, :])
    b = tl.load(b_ptr + base + r[:, None] * S + r[None, :])
    acc = tl.dot(a, b)
    tl.store(c_ptr + base + r[:, None] * S + r[None, :], acc.to(tl.float16))


torch.manual_seed(0)
a = torch.randn(NBATCH, S, S, device="cuda", dtype=torch.float16)
b = torch.randn(NBATCH, S, S, device="cuda", dtype=torch.float16)
c = torch.empty_like(a)

bmm_kernel[(NBATCH,)](a, b, c, S, num_warps=4)

torch.testing.assert_close(c.float(), torch.bmm(a.float(), b.float()), rtol=1e-2, atol=2e-2)
