"""Dropout, which uses all four numbers that a call of Philox computes."""

import torch
import triton
import triton.language as tl


@triton.jit
def dropout(x, out, n, p, seed, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    a, b, c, d = tl.rand4x(seed, tl.program_id(0) * (BLOCK // 4) + tl.arange(0, BLOCK // 4))
    keep = tl.reshape(tl.join(tl.join(a, b), tl.join(c, d)), (BLOCK,)) > p
    v = tl.load(x + i, mask=mask)
    tl.store(out + i, tl.where(keep, v / (1 - p), 0.0), mask=mask)


n = 1 << 26
x = torch.ones(n, device="cuda", dtype=torch.bfloat16)
dropped = torch.empty_like(x)  # no `out`: other numbers are drawn, so other elements are dropped
dropout[(triton.cdiv(n, 1024),)](x, dropped, n, 0.5, 7, 1024)
assert ((dropped == 0) | (dropped == 2)).all()
kept = (dropped == 2).view(-1, 4).float()  # a row a call of Philox: half of each column, a quarter of each pair
torch.testing.assert_close(kept.T @ kept / len(kept), (torch.eye(4, device="cuda") + 1) / 4, rtol=0, atol=0.01)
