"""RMS normalisation and the linear layer after it in one kernel; the weight of the norm is folded in already.

Fault: each of the 64 blocks of columns goes over the rows once more before its product, only for their mean square:
64 steps that wait for memory and reduce across threads, about as long as half of the product itself. The scaled rows
then pass through registers before they reach the tensor cores.
Fix: the scale of a row is common to its whole product: compute it once a row in a kernel before, multiply the rows as
they are, and scale the result.
"""

import torch
import triton
import triton.language as tl

M = 2048
K = 4096
N = 8192


@triton.jit
def norm_linear(
    x_ptr, w_ptr, y_ptr, eps, n, K: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M,), tl.float32)
    for k in range(0, K, BLOCK_K):  # planted: statistics-per-tile
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :]).to(tl.float32)
        total += tl.sum(x * x, axis=1)
    scale = tl.rsqrt(total / K + eps)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + rm[:, None] * K + (k + rk)[None, :]).to(tl.float32) * scale[:, None]
        w = tl.load(w_ptr + (k + rk)[:, None] * n + rn[None, :])
        acc = tl.dot(x.to(tl.bfloat16), w, acc)
    tl.store(y_ptr + rm[:, None] * n + rn[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
x = torch.randn(M, K, device="cuda", dtype=torch.bfloat16)
w = torch.randn(K, N, device="cuda", dtype=torch.bfloat16) * K**-0.5
y = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)

norm_linear[(M // 128, N // 128)](
    x, w, y, 1e-6, N, K=K, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3
)

normed = x.float() * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-6)
torch.testing.assert_close(y.float(), normed @ w.float(), rtol=2e-2, atol=4e-2)
