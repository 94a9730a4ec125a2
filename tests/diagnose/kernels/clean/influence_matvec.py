"""Many small matrices times one vector each, 256 x 256 in bf16, the sum in fp32.

A product with a single vector: each value of a matrix is used once, so memory sets the pace and the tensor cores, which
would work on fifteen columns of padding, have nothing to add to a multiplication and a sum on the lanes.
"""

import torch
import triton
import triton.language as tl

B = 2048
SIDE = 256


@triton.jit
def influence(a_ptr, x_ptr, y_ptr, SIDE: tl.constexpr, BLOCK: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    col = tl.arange(0, SIDE)
    a = tl.load(a_ptr + batch * SIDE * SIDE + row[:, None] * SIDE + col[None, :])
    x = tl.load(x_ptr + batch * SIDE + col).to(tl.float32)
    tl.store(y_ptr + batch * SIDE + row, tl.sum(a.to(tl.float32) * x[None, :], axis=1))


torch.manual_seed(0)
a = torch.randn(B, SIDE, SIDE, device="cuda", dtype=torch.bfloat16)
x = torch.randn(B, SIDE, device="cuda", dtype=torch.bfloat16)
y = torch.empty(B, SIDE, device="cuda")

influence[(SIDE // 32, B)](a, x, y, SIDE=SIDE, BLOCK=32, num_warps=4)

torch.testing.assert_close(y, (a.float() * x.float()[:, None]).sum(-1), rtol=1e-4, atol=1e-3)
