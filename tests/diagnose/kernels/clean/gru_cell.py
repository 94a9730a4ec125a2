"""Pointwise part of a GRU cell: the next hidden state from the three gates of the input and of the state.

Eight values of two bytes pass memory for each one computed, all of them in wide rows: bound by bandwidth.
"""

import torch
import triton
import triton.language as tl

BATCH = 8192
HIDDEN = 2048


@triton.jit
def gru_cell(gx_ptr, gh_ptr, h_ptr, out_ptr, HIDDEN: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    gx = gx_ptr + row * (3 * HIDDEN) + i
    gh = gh_ptr + row * (3 * HIDDEN) + i
    reset = tl.sigmoid(tl.load(gx).to(tl.float32) + tl.load(gh).to(tl.float32))
    update = tl.sigmoid(tl.load(gx + HIDDEN).to(tl.float32) + tl.load(gh + HIDDEN).to(tl.float32))
    fresh = tl.load(gx + 2 * HIDDEN).to(tl.float32) + reset * tl.load(gh + 2 * HIDDEN).to(tl.float32)
    fresh = 2.0 * tl.sigmoid(2.0 * fresh) - 1.0
    h = tl.load(h_ptr + row * HIDDEN + i).to(tl.float32)
    tl.store(out_ptr + row * HIDDEN + i, (fresh + update * (h - fresh)).to(tl.bfloat16))


torch.manual_seed(0)
gx = torch.randn(BATCH, 3 * HIDDEN, device="cuda", dtype=torch.bfloat16)
gh = torch.randn(BATCH, 3 * HIDDEN, device="cuda", dtype=torch.bfloat16)
h = torch.randn(BATCH, HIDDEN, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(h)

gru_cell[(HIDDEN // 1024, BATCH)](gx, gh, h, out, HIDDEN=HIDDEN, BLOCK=1024, num_warps=4)

xr, xz, xn = gx.float().chunk(3, 1)
hr, hz, hn = gh.float().chunk(3, 1)
fresh = torch.tanh(xn + torch.sigmoid(xr + hr) * hn)
want = fresh + torch.sigmoid(xz + hz) * (h.float() - fresh)
torch.testing.assert_close(out.float(), want, rtol=1e-2, atol=1e-2)
