"""Sparse matrix in CSR times a dense matrix of 64 columns; a few rows hold a large part of the non-zeros."""

import torch
import triton
import triton.language as tl

ROWS = 32768
LONG = 32768
WIDTH = 64
PIECE = 256


@triton.jit
def csr_spmm(
    row_ptr,
    piece_row_ptr,
    piece_start_ptr,
    col_ptr,
    val_ptr,
    x_ptr,
    y_ptr,
    WIDTH: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.load(piece_row_ptr + tl.program_id(0))
    begin = tl.load(piece_start_ptr + tl.program_id(0))
    end = tl.minimum(tl.load(row_ptr + row + 1), begin + PIECE)
    cols = tl.arange(0, WIDTH)
    acc = tl.zeros((BLOCK, WIDTH), tl.float32)
    for start in range(begin, end, BLOCK):
        i = start + tl.arange(0, BLOCK)
        mask = i < end
        source = tl.load(col_ptr + i, mask=mask, other=0)
        value = tl.load(val_ptr + i, mask=mask, other=0.0)
        acc += value[:, None] * tl.load(x_ptr + source[:, None] * WIDTH + cols[None, :], mask=mask[:, None], other=0.0)
    tl.atomic_add(y_ptr + row * WIDTH + cols, tl.sum(acc, axis=0), sem="relaxed")


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

pieces = (length + PIECE - 1) // PIECE
piece_row = torch.repeat_interleave(torch.arange(ROWS, device="cuda"), pieces)
nth = torch.arange(len(piece_row), device="cuda") - (pieces.cumsum(0) - pieces)[piece_row]
piece_start = (starts[piece_row] + PIECE * nth).int()
csr_spmm[(len(piece_row),)](
    starts, piece_row.int(), piece_start, col, val, x, y, WIDTH=WIDTH, PIECE=PIECE, BLOCK=32, num_warps=4
)

row_of = torch.repeat_interleave(torch.arange(ROWS, device="cuda"), length)
want = torch.zeros_like(y, dtype=torch.float64).index_add_(0, row_of, (val[:, None] * x[col.long()]).double()).float()
torch.testing.assert_close(y, want, rtol=1e-3, atol=1e-2)
