"""Down projection of a feed-forward block with squared ReLU, out = max(h, 0)^2 W; half of the activations are zero.

Fault: a block of activations that is all zero is skipped, but with zeros in random places no block of 128 x 64 is. The
branch around the product keeps the loop from being pipelined, and each step waits for its own loads.
Fix: no branch; loads of later steps are under way while a step's product runs.
"""

import torch
import triton
import triton.language as tl

TOKENS = 4096
INNER = 8192
MODEL = 4096
BLOCK_M = 128
BLOCK_N = 128
BLOCK_K = 64


@triton.jit
def relu2_down_proj(
    h_ptr,
    w_ptr,
    out_ptr,
    INNER: tl.constexpr,
    MODEL: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, INNER, BLOCK_K):
        h = tl.load(h_ptr + m[:, None] * INNER + (start + k)[None, :])  # planted: loads-not-pipelined
        h = tl.maximum(h, 0.0)
        if tl.max(tl.max(h, axis=1), axis=0) > 0:
            w = tl.load(w_ptr + (start + k)[:, None] * MODEL + n[None, :])
            total = tl.dot((h * h).to(tl.float16), w, total)
    tl.store(out_ptr + m[:, None] * MODEL + n[None, :], total.to(tl.float16))


torch.manual_seed(0)
h = torch.randn(TOKENS, INNER, device="cuda", dtype=torch.float16)
w = torch.randn(INNER, MODEL, device="cuda", dtype=torch.float16) / INNER**0.5
out = torch.empty(TOKENS, MODEL, device="cuda", dtype=torch.float16)

relu2_down_proj[(TOKENS // BLOCK_M, MODEL // BLOCK_N)](
    h,
    w,
    out,
    INNER=INNER,
    MODEL=MODEL,
    BLOCK_M=BLOCK_M,
    BLOCK_N=BLOCK_N,
    BLOCK_K=BLOCK_K,
    num_warps=8,
    num_stages=3,
)

torch.testing.assert_close(out, h.relu().square() @ w, atol=2e-2, rtol=2e-2)
