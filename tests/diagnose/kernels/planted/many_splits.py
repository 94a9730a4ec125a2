"""A square GEMM in split-K, whose tiles alone fill the GPU several times."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, N, K, SPLIT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.program_id(2) * BK + tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * K + rk[None, :]
    b_ptrs = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK * SPLIT):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK * SPLIT
        b_ptrs += BK * SPLIT * N
    tl.atomic_add(c + rm[:, None] * N + rn[None, :], acc, sem="relaxed")  # planted: needless-split-k


m, n, k, split = 4096, 4096, 4096, 8
a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
c = torch.zeros(m, n, device="cuda")
gemm[(m // 128, n // 128, split)](a, b, c, n, k, split, 128, 128, 64, num_warps=4, num_stages=4)
torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=0.5)
