"""Distances in the 1-norm between 4096 and 4096 vectors of 128 features, which lie feature by feature.

Fault: the launch holds threads to 32 registers, to have more warps on a multiprocessor; a thread has 32 sums of its
tile of 64 x 64 alone, so that they are stored to local memory and loaded again in each step.
Fix: let the compiler take the registers that it needs.
"""

import torch
import triton
import triton.language as tl

ROWS = 4096
COLS = 4096
DIM = 128


@triton.jit
def l1_cdist(
    a_ptr, b_ptr, out_ptr, ROWS: tl.constexpr, COLS: tl.constexpr, DIM, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr
):
    rm = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for d in range(DIM):
        a = tl.load(a_ptr + d * ROWS + rm)
        b = tl.load(b_ptr + d * COLS + rn)
        acc += tl.abs(a[:, None] - b[None, :])  # planted: register-spills
    tl.store(out_ptr + rm[:, None] * COLS + rn[None, :], acc)


torch.manual_seed(0)
a = torch.randn(DIM, ROWS, device="cuda")
b = torch.randn(DIM, COLS, device="cuda")
out = torch.empty(ROWS, COLS, device="cuda")

l1_cdist[(COLS // 64, ROWS // 64)](
    a,
    b,
    out,
    ROWS=ROWS,
    COLS=COLS,
    DIM=DIM,
    BLOCK_M=64,
    BLOCK_N=64,
    num_warps=4,
    maxnreg=32,
)

want = torch.cdist(a.T.contiguous(), b.T.contiguous(), p=1.0)
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-3)
