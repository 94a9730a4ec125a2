"""Walsh-Hadamard transform of rows of 1024 values, as rotation before quantisation."""

import torch
import triton
import triton.language as tl

ROWS = 65536
SIDE = 32


@triton.jit
def hadamard(x_ptr, h_ptr, y_ptr, SIDE: tl.constexpr, BLOCK_M: tl.constexpr):
    # a row of the tile is one of the 32 slices of 32 values of a row of the input
    r = tl.program_id(0) * BLOCK_M * SIDE + tl.arange(0, BLOCK_M * SIDE)
    side = tl.arange(0, SIDE)
    h = tl.load(h_ptr + side[:, None] * SIDE + side[None, :])
    x = tl.load(x_ptr + r[:, None] * SIDE + side[None, :])
    x = (tl.dot(x, h) * SIDE**-0.5).to(tl.bfloat16)
    x = tl.reshape(tl.permute(tl.reshape(x, (BLOCK_M, SIDE, SIDE)), (0, 2, 1)), (BLOCK_M * SIDE, SIDE))
    x = (tl.dot(x, h) * SIDE**-0.5).to(tl.bfloat16)
    x = tl.reshape(tl.permute(tl.reshape(x, (BLOCK_M, SIDE, SIDE)), (0, 2, 1)), (BLOCK_M * SIDE, SIDE))
    tl.store(y_ptr + r[:, None] * SIDE + side[None, :], x)


torch.manual_seed(0)
h = torch.ones(1, 1, device="cuda")
while h.shape[0] < SIDE:
    h = torch.cat((torch.cat((h, h), 1), torch.cat((h, -h), 1)), 0)
full = torch.kron(h, h)
x = torch.randn(ROWS, SIDE * SIDE, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)

hadamard[(ROWS // 8,)](x, h.bfloat16(), y, SIDE=SIDE, BLOCK_M=8, num_warps=4)

torch.testing.assert_close(y.float(), x.float() @ full * (1 / SIDE), rtol=2e-2, atol=3e-2)
