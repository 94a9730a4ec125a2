"""A GEMM of few rows, whose parts are added by atomics."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SPLIT: tl.constexpr):
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    part = K // SPLIT
    rk = tl.program_id(1) * part + tl.arange(0, BK)
    rm = tl.arange(0, BM)
    a_ptrs = a + rm[:, None] * K + rk[None, :]
    b_ptrs = b + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, part, BK):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tl.atomic_add(c + rm[:, None] * N + rn[None, :], acc, sem="relaxed")


a = torch.randn(64, 16384, device="cuda", dtype=torch.bfloat16)
b = torch.randn(16384, 8192, device="cuda", dtype=torch.bfloat16)
c = torch.zeros(64, 8192, device="cuda")
gemm[(64, 8)](a, b, c, 8192, 16384, 64, 128, 64, 8, num_warps=4, num_stages=4)
torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=0.1)
