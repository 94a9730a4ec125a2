"""So many stages that one CTA of four warps takes all shared memory of an SM."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])  # planted: low-occupancy
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :])
        acc = tl.dot(x, y, acc)
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


a, b = torch.randn(2, 4096, 4096, device="cuda", dtype=torch.float16).unbind(0)
c = torch.empty_like(a)
gemm[(64, 64)](a, b, c, 4096, 4096, 64, 64, 128, num_warps=4, num_stages=6)
torch.testing.assert_close(c, a @ b, rtol=0.02, atol=1)
