"""A product with the few rows of a decoding step, on tiles of 16 rows."""

import torch
import triton
import triton.language as tl


@triton.jit
def linear(x, w, y, N, K, TOKENS: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    rows = tl.arange(0, BM)
    cols = tl.program_id(0) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for start in range(0, K, BK):
        k = start + depth
        a = tl.load(x + rows[:, None] * K + k[None, :], mask=rows[:, None] < TOKENS, other=0.0)
        b = tl.load(w + cols[None, :] * K + k[:, None])
        acc = tl.dot(a, b, acc)
    tl.store(y + rows[:, None] * N + cols[None, :], acc.to(tl.bfloat16), mask=rows[:, None] < TOKENS)


tokens, n, k = 4, 16384, 4096
x = torch.randn(tokens, k, device="cuda", dtype=torch.bfloat16)
w = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
y = torch.empty(tokens, n, device="cuda", dtype=torch.bfloat16)
linear[(n // 64,)](x, w, y, n, k, tokens, 16, 64, 64, num_warps=4, num_stages=4)
torch.testing.assert_close(y, x @ w.T, rtol=0.02, atol=1)
