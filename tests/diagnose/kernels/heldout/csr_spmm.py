"""Sparse matrix in CSR times a dense matrix of 64 columns; a few rows hold a large part of the non-zeros.

Fault: one program per row. Most rows have 16 non-zeros, eight of them have 32768, and a program walks its row in steps
of 32 that each wait for an index and then for the rows it names, about 0.7 us a step: the long rows run for some 700 us
on eight of 132 multiprocessors, while all the work (200 MB out of L2) is worth about 50 us of the whole device.
Fix: cut the rows in pieces of at most 256 non-zeros and run a program per piece that adds its sum to the row.
"""

import torch
import triton
import triton.language as tl

ROWS = 32768
LONG = 32768
WIDTH = 64


@triton.jit
def csr_spmm(row_ptr, col_ptr, val_ptr, x_ptr, y_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):  # planted: imbalance
    row = tl.program_id(0)
    begin = tl.load(row_ptr + row)
    end = tl.load(row_ptr + row + 1)
    cols = tl.arange(0, WIDTH)
    acc = tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < end
        source = tl.load(col_ptr + i, mask=mask, other=0)
        value = tl.load(val_ptr + i, mask=mask, other=0.0)
        acc += value[:, None] * tl.load(x_ptr + source[:, None] * WIDTH + cols[None, :], mask=mask[:, None], other=0.0)
    tl.store(y_ptr + row * WIDTH + cols, tl.sum(acc, axis=0))


torch.manual_seed(0)
length = torch.full((ROWS,), 16, device="cuda")
length[torch.randperm(ROWS, device="cuda")[:8]] = LONG
starts = torch.zeros(ROWS + 1, device="cuda", dtype=torch.int32)
starts[1:] = length.cumsum(0)
nnz = int(starts[-1])
col = torch.randint(0, ROWS, (nnz,), device="cuda", dtype=torch.int32)
val = torch.randn(nnz, device="cuda")
x = torch.randn(ROWS, WIDTH, device="cuda")
y = torch.zeros(ROWS, WIDTH, device="cuda")

csr_spmm[(ROWS,)](starts, col, val, x, y, WIDTH=WIDTH, BLOCK=32, num_warps=4)

row_of = torch.repeat_interleave(torch.arange(ROWS, device="cuda"), length)
want = torch.zeros_like(y, dtype=torch.float64).index_add_(0, row_of, (val[:, None] * x[col.long()]).double()).float()
torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-2)
