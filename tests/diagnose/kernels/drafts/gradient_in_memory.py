"""Each program adds its part of a gradient to memory, tile by tile: an early draft of attention's backward pass."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_gradients(scores, k, grad_q, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    keys = tl.program_id(0) * BN + tl.arange(0, BN)
    rows, dims = tl.arange(0, BM), tl.arange(0, D)
    tile = tl.load(k + keys[:, None] * D + dims[None, :])
    grad_ptrs = grad_q + tl.program_id(0) * N * D + rows[:, None] * D + dims[None, :]
    score_ptrs = scores + rows[:, None] * N + keys[None, :]
    for _ in range(0, N, BM):
        grad = tl.load(grad_ptrs)  # planted: loads-not-pipelined
        grad += tl.dot(tl.load(score_ptrs), tile)
        tl.store(grad_ptrs, grad)
        grad_ptrs += BM * D
        score_ptrs += BM * N


n, d = 8448, 64
scores = torch.randn(n, n, device="cuda", dtype=torch.float16)
k = torch.randn(n, d, device="cuda", dtype=torch.float16)
parts = torch.zeros(n // 64, n, d, device="cuda")
add_gradients[(n // 64,)](scores, k, parts, n, 128, 64, d, num_warps=4, num_stages=3)
grad_q = parts.sum(0)
torch.testing.assert_close(grad_q, scores.float() @ k.float(), rtol=1e-2, atol=0.1)
