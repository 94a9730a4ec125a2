"""Scores of 4096 queries against 32768 documents, embeddings of 1024 values in bf16, all pairs.

The strides are specialised as usual, and the compiler knows that the loop runs.
"""

import torch
import triton
import triton.language as tl

QUERIES = 4096
DOCUMENTS = 32768
DIM = 1024


@triton.jit
def retrieval_scores(
    q_ptr,
    d_ptr,
    score_ptr,
    DIM,
    stride_q,
    stride_d,
    stride_s,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    q_at = q_ptr + rm[:, None] * stride_q + rk[None, :]
    d_at = d_ptr + rn[:, None] * stride_d + rk[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    tl.assume(DIM > 0)
    for _ in range(0, DIM, BLOCK_K):
        acc = tl.dot(tl.load(q_at), tl.load(d_at).T, acc)
        q_at += BLOCK_K
        d_at += BLOCK_K
    tl.store(score_ptr + rm[:, None] * stride_s + rn[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
q = torch.nn.functional.normalize(torch.randn(QUERIES, DIM, device="cuda"), dim=1).bfloat16()
d = torch.nn.functional.normalize(torch.randn(DOCUMENTS, DIM, device="cuda"), dim=1).bfloat16()
score = torch.empty(QUERIES, DOCUMENTS, device="cuda", dtype=torch.bfloat16)

retrieval_scores[(QUERIES // 128, DOCUMENTS // 256)](
    q,
    d,
    score,
    DIM,
    q.stride(0),
    d.stride(0),
    score.stride(0),
    BLOCK_M=128,
    BLOCK_N=256,
    BLOCK_K=64,
    num_warps=8,
    num_stages=3,
)

torch.testing.assert_close(score.float(), q.float() @ d.float().T, rtol=1e-2, atol=1e-3)
