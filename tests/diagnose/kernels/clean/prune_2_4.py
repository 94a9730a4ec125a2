"""Pruning to 2:4 sparsity: of each four weights next to each other the two of largest magnitude stay, bf16.

Each of the four is ranked by comparing it with the other three, which for four is less work than any sort; the 268 MB
in and out are what the time goes to.
"""

import torch
import triton
import triton.language as tl

ROWS = 8192
WIDTH = 8192


@triton.jit
def prune_2_4(w_ptr, out_ptr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK * 4 + tl.arange(0, BLOCK * 4)
    even, odd = tl.split(tl.reshape(tl.load(w_ptr + at), (BLOCK, 2, 2)))
    w0, w2 = tl.split(even)
    w1, w3 = tl.split(odd)
    m0 = tl.abs(w0.to(tl.float32))
    m1 = tl.abs(w1.to(tl.float32))
    m2 = tl.abs(w2.to(tl.float32))
    m3 = tl.abs(w3.to(tl.float32))
    # of equals the first stays
    b01 = (m0 >= m1).to(tl.int32)
    b02 = (m0 >= m2).to(tl.int32)
    b03 = (m0 >= m3).to(tl.int32)
    b12 = (m1 >= m2).to(tl.int32)
    b13 = (m1 >= m3).to(tl.int32)
    b23 = (m2 >= m3).to(tl.int32)
    w0 = tl.where(b01 + b02 + b03 >= 2, w0, 0.0)
    w1 = tl.where(b12 + b13 - b01 >= 1, w1, 0.0)
    w2 = tl.where(b23 - b02 - b12 >= 0, w2, 0.0)
    w3 = tl.where(b03 + b13 + b23 <= 1, w3, 0.0)
    out = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    tl.store(out_ptr + at, tl.reshape(out, (BLOCK * 4,)).to(tl.bfloat16))


torch.manual_seed(0)
w = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(w)

prune_2_4[(ROWS * WIDTH // 4096,)](w, out, BLOCK=1024, num_warps=4)

four = w.view(-1, 4)
order = torch.argsort(four.abs(), dim=1, descending=True, stable=True)
want = torch.zeros_like(four).scatter_(1, order[:, :2], four.gather(1, order[:, :2]))
torch.testing.assert_close(out.view(-1, 4), want)
