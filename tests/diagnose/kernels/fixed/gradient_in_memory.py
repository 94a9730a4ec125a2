"""Each program has rows of the gradient of its own, and sums them in registers."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_gradients(scores, k, grad_q, N, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    rows = tl.program_id(0) * BM + tl.arange(0, BM)
    keys, dims = tl.arange(0, BN), tl.arange(0, D)
    tile_ptrs = k + keys[:, None] * D + dims[None, :]
    score_ptrs = scores + rows[:, None] * N + keys[None, :]
    grad = tl.zeros((BM, D), tl.float32)
    for _ in range(0, N, BN):
        grad = tl.dot(tl.load(score_ptrs), tl.load(tile_ptrs), grad)
        tile_ptrs += BN * D
        score_ptrs += BN
    tl.store(grad_q + rows[:, None] * D + dims[None, :], grad)


n, d = 8448, 64
scores = torch.randn(n, n, device="cuda", dtype=torch.float16)
k = torch.randn(n, d, device="cuda", dtype=torch.float16)
grad_q = torch.empty(n, d, device="cuda")
add_gradients[(n // 64,)](scores, k, grad_q, n, 64, 64, d, num_warps=4, num_stages=3)
torch.testing.assert_close(grad_q, scores.float() @ k.float(), rtol=1e-2, atol=0.1)
