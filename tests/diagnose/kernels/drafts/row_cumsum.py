"""Inclusive cumulative sum along the rows of a matrix, chunk by chunk with a running carry.
Fault: the prefix inside a chunk is made from a BLOCK x BLOCK lower-triangular select and a sum over it, quadratic in
the chunk, so a kernel that should be bound by memory is bound by ALU work. Fix: tl.cumsum, a log-depth scan."""

import torch
import triton
import triton.language as tl

R, N = 16384, 4096


@triton.jit
def cumsum_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    idx = tl.arange(0, BLOCK)
    carry = 0.0
    for start in range(0, N, BLOCK):
        cols = start + idx
        mask = cols < N
        x = tl.load(x_ptr + row * N + cols, mask=mask, other=0.0)
        prefix = tl.sum(tl.where(idx[:, None] >= idx[None, :], x[None, :], 0.0), axis=1)  # planted: scan-by-hand
        tl.store(y_ptr + row * N + cols, prefix + carry, mask=mask)
        carry += tl.sum(x, axis=0)


torch.manual_seed(0)
x = torch.rand(R, N, device="cuda")
y = torch.empty_like(x)

cumsum_kernel[(R,)](x, y, N, BLOCK=128, num_warps=4)

torch.testing.assert_close(y, torch.cumsum(x, dim=1), rtol=1e-4, atol=1e-3)
