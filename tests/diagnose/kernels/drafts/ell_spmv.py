"""Sparse matrix times vector, y = A x, with A in ELLPACK form: WIDTH entries a row, columns and values row by row.

Fault: a lane takes a whole row and walks along it, so at each step neighbouring lanes read 128 bytes apart: 32 cache
lines for 128 useful bytes, and the lines are evicted before the next steps come back for the rest of them.
Fix: a tile of rows x WIDTH whose fast axis is the entry of a row, summed along it.
"""

import torch
import triton
import triton.language as tl

ROWS = 1048576
WIDTH = 32
BAND = 512


@triton.jit
def ell_spmv(column_ptr, value_ptr, x_ptr, y_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    total = tl.zeros((BLOCK,), tl.float32)
    for j in range(WIDTH):
        column = tl.load(column_ptr + row * WIDTH + j)
        value = tl.load(value_ptr + row * WIDTH + j)  # planted: uncoalesced-access
        total += value * tl.load(x_ptr + column)
    tl.store(y_ptr + row, total)


torch.manual_seed(0)
row = torch.arange(ROWS, device="cuda", dtype=torch.int32)[:, None]
offset = torch.randint(-BAND, BAND, (ROWS, WIDTH), device="cuda", dtype=torch.int32)
column = (row + offset).clamp(0, ROWS - 1).contiguous()
value = torch.randn(ROWS, WIDTH, device="cuda")
x = torch.randn(ROWS, device="cuda")
y = torch.empty(ROWS, device="cuda")

ell_spmv[(ROWS // 256,)](column, value, x, y, WIDTH=WIDTH, BLOCK=256, num_warps=4)

torch.testing.assert_close(y, (value * x[column.long()]).sum(1), atol=1e-4, rtol=1e-4)
