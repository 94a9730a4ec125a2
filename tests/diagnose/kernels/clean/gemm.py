"""A GEMM with pointers, as an autotuner leaves it."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a, b, c, M, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m, tiles_n = tl.cdiv(M, BM), tl.cdiv(N, BN)
    width = GROUP * tiles_n
    first = pid // width * GROUP
    size = min(tiles_m - first, GROUP)
    pid_m, pid_n = first + pid % width % size, pid % width // size
    rm = (pid_m * BM + tl.arange(0, BM)) % M
    rn = (pid_n * BN + tl.arange(0, BN)) % N
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * sa + rk[None, :]
    b_ptrs = b + rk[:, None] * sb + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        x = tl.load(a_ptrs, mask=rk[None, :] < K - k * BK, other=0.0)
        y = tl.load(b_ptrs, mask=rk[:, None] < K - k * BK, other=0.0)
        acc = tl.dot(x, y, acc)
        a_ptrs += BK
        b_ptrs += BK * sb
    om, on = pid_m * BM + tl.arange(0, BM), pid_n * BN + tl.arange(0, BN)
    tl.store(c + om[:, None] * sc + on[None, :], acc.to(tl.bfloat16), mask=(om[:, None] < M) & (on[None, :] < N))


a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).unbind(0)
c = torch.empty_like(a)
gemm[(64 * 32,)](a, b, c, 8192, 8192, 8192, 8192, 8192, 8192, 128, 256, 64, 8, num_warps=8, num_stages=4)
torch.testing.assert_close(c, a @ b, rtol=0.02, atol=1)
