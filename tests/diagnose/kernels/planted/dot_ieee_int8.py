"""A GEMM of float16 activations by int8 weights, whose scaled weights are float32, as exact as float32 can be."""

import torch
import triton
import triton.language as tl


@triton.jit
def gemm(a, w, s, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    scale = tl.load(s + rn)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(w + (k + rk)[:, None] * N + rn[None, :])
        y = y.to(tl.float32) * scale[None, :]
        acc = tl.dot(x.to(tl.float32), y, acc, input_precision="ieee")  # planted: dot-on-fma
    tl.store(c + rm[:, None] * N + rn[None, :], acc.to(c.dtype.element_ty))


m, n, k = 2048, 4096, 4096
a = torch.randn(m, k, device="cuda", dtype=torch.float16)
w = torch.randint(-127, 128, (k, n), device="cuda", dtype=torch.int8)
s = torch.rand(n, device="cuda", dtype=torch.float32) / 1024
c = torch.empty(m, n, device="cuda", dtype=torch.float16)
gemm[(m // 64, n // 64)](a, w, s, c, m, n, k, 64, 64, 32, num_warps=4, num_stages=3)
torch.testing.assert_close(c.float(), a.float() @ (w.float() * s), rtol=1e-2, atol=5e-2)
