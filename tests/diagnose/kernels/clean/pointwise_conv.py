"""Pointwise (1 x 1) convolution of feature maps in NHWC, with bias and SiLU."""

import torch
import triton
import triton.language as tl

PIXELS = 131072
CHANNELS = 1024
FILTERS = 512
BLOCK_M = 128
BLOCK_N = 256
BLOCK_K = 64


@triton.jit
def pointwise_conv(
    x_ptr,
    w_ptr,
    bias_ptr,
    out_ptr,
    CHANNELS: tl.constexpr,
    FILTERS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, CHANNELS, BLOCK_K):
        x = tl.load(x_ptr + m[:, None] * CHANNELS + (start + k)[None, :])
        w = tl.load(w_ptr + (start + k)[:, None] * FILTERS + n[None, :])
        total = tl.dot(x, w, total)
    total += tl.load(bias_ptr + n)[None, :]
    total *= tl.sigmoid(total)
    tl.store(out_ptr + m[:, None] * FILTERS + n[None, :], total.to(tl.float16))


torch.manual_seed(0)
x = torch.randn(PIXELS, CHANNELS, device="cuda", dtype=torch.float16)
w = torch.randn(CHANNELS, FILTERS, device="cuda", dtype=torch.float16) / CHANNELS**0.5
bias = torch.randn(FILTERS, device="cuda")
out = torch.empty(PIXELS, FILTERS, device="cuda", dtype=torch.float16)

pointwise_conv[(FILTERS // BLOCK_N, PIXELS // BLOCK_M)](
    x,
    w,
    bias,
    out,
    CHANNELS=CHANNELS,
    FILTERS=FILTERS,
    BLOCK_M=BLOCK_M,
    BLOCK_N=BLOCK_N,
    BLOCK_K=BLOCK_K,
    num_warps=8,
    num_stages=3,
)

torch.testing.assert_close(out, torch.nn.functional.silu((x @ w).float() + bias).half(), atol=2e-2, rtol=2e-2)
