"""First layer of a radiance field's network: 320 features of an encoded point to 256 hidden units, with ReLU."""

import torch
import triton
import triton.language as tl

POINTS = 524288
FEATURES = 320
HIDDEN = 256


@triton.jit
def nerf_layer(
    x_ptr,
    w_ptr,
    out_ptr,
    FEATURES: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    hidden = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, FEATURES, BLOCK_K):
        x = tl.load(x_ptr + m[:, None] * FEATURES + (start + k)[None, :])
        w = tl.load(w_ptr + (start + k)[:, None] * HIDDEN + n[None, :])
        hidden = tl.dot(x, w, hidden)
    tl.store(out_ptr + m[:, None] * HIDDEN + n[None, :], tl.maximum(hidden, 0.0).to(tl.float16))


torch.manual_seed(0)
x = torch.randn(POINTS, FEATURES, device="cuda", dtype=torch.float16)
w = torch.randn(FEATURES, HIDDEN, device="cuda", dtype=torch.float16) / FEATURES**0.5
out = torch.empty(POINTS, HIDDEN, device="cuda", dtype=torch.float16)

nerf_layer[(HIDDEN // 128, POINTS // 128)](
    x,
    w,
    out,
    FEATURES=FEATURES,
    HIDDEN=HIDDEN,
    BLOCK_M=128,
    BLOCK_N=128,
    BLOCK_K=64,
    num_warps=8,
    num_stages=3,
)

torch.testing.assert_close(out, (x @ w).relu(), atol=1e-2, rtol=1e-2)
