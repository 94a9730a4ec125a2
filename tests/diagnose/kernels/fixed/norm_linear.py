"""RMS normalisation and the linear layer after it; the weight of the norm is folded in already."""

import torch
import triton
import triton.language as tl

M = 2048
K = 4096
N = 8192


@triton.jit
def row_scale(x_ptr, scale_ptr, eps, K: tl.constexpr):
    row = tl.program_id(0)
    x = tl.load(x_ptr + row * K + tl.arange(0, K)).to(tl.float32)
    tl.store(scale_ptr + row, tl.rsqrt(tl.sum(x * x, axis=0) / K + eps))


@triton.jit
def scaled_linear(
    x_ptr,
    scale_ptr,
    w_ptr,
    y_ptr,
    n,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :])
        w = tl.load(w_ptr + (k + rk)[:, None] * n + rn[None, :])
        acc = tl.dot(x, w, acc)
    scale = tl.load(scale_ptr + rm)
    tl.store(y_ptr + rm[:, None] * n + rn[None, :], (acc * scale[:, None]).to(tl.bfloat16))


torch.manual_seed(0)
x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
w = torch.randn(K, N, device="cuda", dtype=torch.bfloat16) * K**-0.5
scale = torch.empty(M, device="cuda", dtype=torch.float32)
y = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)

row_scale[(M,)](x, scale, 1e-6, K=K, num_warps=4)
scaled_linear[(M // 128, N // 128)](
    x, scale, w, y, N, K=K, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3
)

normed = x.float() * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-6)
torch.testing.assert_close(y.float(), normed @ w.float(), rtol=2e-2, atol=4e-2)
