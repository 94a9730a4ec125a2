"""A first matrix product: rows times columns, summed."""

import torch
import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        rk = k + tl.arange(0, BK)
        x = tl.load(a + rm[:, None] * K + rk[None, :])
        y = tl.load(b + rn[:, None] * K + rk[None, :])
        acc += tl.sum(x[:, None, :] * y[None, :, :], axis=2)  # planted: dot-by-hand
    tl.store(c + rm[:, None] * N + rn[None, :], acc)


a = torch.randn(2048, 2048, device="cuda")
b = torch.randn(2048, 2048, device="cuda")
c = torch.empty_like(a)
matmul[(64, 64)](a, b, c, 2048, 2048, 32, 32, 16)
torch.testing.assert_close(c, a @ b.T, rtol=1e-3, atol=1e-2)
