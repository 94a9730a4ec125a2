"""A GEMM with a buffer too few."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * sa + rk[None, :]
    b_ptrs = b + rk[:, None] * sb + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a_ptrs)  # planted: too-few-stages
        y = tl.load(b_ptrs)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * sb
    tl.store(c + rm[:, None] * sc + rn[None, :], acc.to(c.dtype.element_ty))


m, n, k = 4096, 4096, 4096
a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
gemm[(m // 128, n // 128)](a, b, c, m, n, k, k, n, n, 128, 128, 64, num_warps=4, num_stages=2)
torch.testing.assert_close(c, a @ b, rtol=0.02, atol=1)
