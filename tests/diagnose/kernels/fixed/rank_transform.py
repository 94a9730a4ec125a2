"""Ranks of the values of each row, as for Spearman's correlation; equal values keep their order."""

import torch
import triton
import triton.language as tl

ROWS = 2048
WIDTH = 2048


@triton.jit
def rank_transform(x_ptr, rank_ptr, WIDTH: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, WIDTH)
    # + 0.0 makes one zero of the two; the bits of a negative number are turned so that integers order as the floats do
    bits = (tl.load(x_ptr + row * WIDTH + i) + 0.0).to(tl.int16, bitcast=True).to(tl.int32)
    key = (bits ^ ((bits >> 31) & 0x7FFF)) * WIDTH + i
    tl.store(rank_ptr + row * WIDTH + (tl.sort(key) & (WIDTH - 1)), i)


torch.manual_seed(0)
x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.float16)
rank = torch.empty(ROWS, WIDTH, device="cuda", dtype=torch.int32)

rank_transform[(ROWS,)](x, rank, WIDTH=WIDTH, num_warps=8)

order = torch.argsort(x, dim=1, stable=True)
places = torch.arange(WIDTH, device="cuda", dtype=torch.int32).expand(ROWS, WIDTH).contiguous()
want = torch.empty_like(rank).scatter_(1, order, places)
torch.testing.assert_close(rank, want)
