"""Walsh-Hadamard transform of rows of 1024 values, as rotation before quantisation.

Fault: the transform is a product with the full 1024 x 1024 matrix. That is 137 GFLOP for 65536 rows, 200 us and up on
the tensor cores, and the rows are read once for each block of columns; the rows are 268 MB in and out, 81 us.
Fix: the matrix is the Kronecker product of two 32 x 32 ones: view a row as 32 x 32 and multiply along both axes, which
is a sixteenth of the arithmetic, and each row is read once.
"""

import torch
import triton
import triton.language as tl

ROWS = 65536
SIDE = 32


@triton.jit
def hadamard(
    x_ptr, h_ptr, y_ptr, WIDTH: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rm = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, WIDTH, BLOCK_K):
        x = tl.load(x_ptr + rm[:, None] * WIDTH + (k + rk)[None, :])
        h = tl.load(h_ptr + (k + rk)[:, None] * WIDTH + rn[None, :])
        acc = tl.dot(x, h, acc)  # planted: dense-transform
    tl.store(y_ptr + rm[:, None] * WIDTH + rn[None, :], (acc * WIDTH**-0.5).to(tl.bfloat16))


torch.manual_seed(0)
h = torch.ones(1, 1, device="cuda")
while h.shape[0] < SIDE:
    h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
full = torch.kron(h, h)
x = torch.randn(ROWS, SIDE * SIDE, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)

hadamard[(SIDE * SIDE // 128, ROWS // 128)](
    x, full.bfloat16(), y, WIDTH=SIDE * SIDE, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=4
)

torch.testing.assert_close(y.float(), x.float() @ full * (1 / SIDE), rtol=2e-2, atol=3e-2)
