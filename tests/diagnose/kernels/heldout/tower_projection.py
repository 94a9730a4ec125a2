"""Projection of a recommender's item tower, out = x W: first for one request, then for the whole catalogue.

Fault: the tuner's key lacks the number of rows, so the choice that won for a request of 16 rows, tiles of 16 x 64, is
kept for the catalogue: little reuse of what is loaded, and no wgmma, which needs 64 rows.
Fix: M in the key; the catalogue then gets its own choice, tiles of 128 x 256.
"""

import torch
import triton
import triton.language as tl

REQUEST = 16
CATALOGUE = 32768
FEATURES = 1024
WIDTH = 2048


@triton.autotune(
    configs=[
        triton.Config({"BLOCK_M": 16, "BLOCK_N": 64, "BLOCK_K": 128}, num_warps=4, num_stages=4),
        triton.Config({"BLOCK_M": 128, "BLOCK_N": 256, "BLOCK_K": 64}, num_warps=8, num_stages=3),
    ],
    key=["N", "K"],  # planted: tuned-for-another-size
)
@triton.jit
def tower_projection(
    x_ptr,
    w_ptr,
    out_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    m = tl.program_id(0) // (N // BLOCK_N) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0) % (N // BLOCK_N) * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, K, BLOCK_K):
        x = tl.load(x_ptr + m[:, None] * K + (start + k)[None, :], mask=m[:, None] < M, other=0.0)
        w = tl.load(w_ptr + (start + k)[:, None] * N + n[None, :])
        total = tl.dot(x, w, total)
    tl.store(out_ptr + m[:, None] * N + n[None, :], total.to(tl.float16), mask=m[:, None] < M)


def grid(meta):
    return (triton.cdiv(meta["M"], meta["BLOCK_M"]) * (meta["N"] // meta["BLOCK_N"]),)


torch.manual_seed(0)
request = torch.randn(REQUEST, FEATURES, device="cuda", dtype=torch.float16)
catalogue = torch.randn(CATALOGUE, FEATURES, device="cuda", dtype=torch.float16)
w = torch.randn(FEATURES, WIDTH, device="cuda", dtype=torch.float16) / FEATURES**0.5
answer = torch.empty(REQUEST, WIDTH, device="cuda", dtype=torch.float16)
out = torch.empty(CATALOGUE, WIDTH, device="cuda", dtype=torch.float16)

tower_projection[grid](request, w, answer, REQUEST, WIDTH, FEATURES)
tower_projection[grid](catalogue, w, out, CATALOGUE, WIDTH, FEATURES)

torch.testing.assert_close(answer, request @ w, atol=1e-2, rtol=1e-2)
torch.testing.assert_close(out, catalogue @ w, atol=1e-2, rtol=1e-2)
