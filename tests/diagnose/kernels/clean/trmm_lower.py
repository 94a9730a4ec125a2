"""Lower triangular matrix times a dense one, 6144 x 6144 in bf16; above the diagonal the first one holds zeros.

The programs stop at the diagonal, so that their work differs by a factor of 48, but the longest start first and the
short ones fill in behind them: each multiprocessor takes about nine of 1152.
"""

import torch
import triton
import triton.language as tl

SIZE = 6144


@triton.jit
def trmm_lower(
    l_ptr, b_ptr, out_ptr, SIZE: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    row = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    rm = row + tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, row + BLOCK_M, BLOCK_K):
        rk = k + tl.arange(0, BLOCK_K)
        a = tl.load(l_ptr + rm[:, None] * SIZE + rk[None, :])
        b = tl.load(b_ptr + rk[:, None] * SIZE + rn[None, :])
        acc = tl.dot(a, b, acc)
    tl.store(out_ptr + rm[:, None] * SIZE + rn[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
lower = (torch.randn(SIZE, SIZE, device="cuda") * SIZE**-0.5).tril().bfloat16()
b = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(b)

trmm_lower[(SIZE // 256, SIZE // 128)](
    lower, b, out, SIZE=SIZE, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=3
)

torch.testing.assert_close(out.float(), (lower @ b).float(), rtol=2e-2, atol=2e-2)
