"""The last layer of a language model, whose weights are read once."""

import torch
import triton
import triton.language as tl


@triton.jit
def logits(x, w, out, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    tiles_m = tl.num_programs(0) // tl.cdiv(N, BN)
    pid_m, pid_n = pid % tiles_m, pid // tiles_m
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    x_ptrs = x + rm[:, None] * K + rk[None, :]
    w_ptrs = w + rn[None, :] * K + rk[:, None]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, K, BK):
        acc = tl.dot(tl.load(x_ptrs), tl.load(w_ptrs), acc)
        x_ptrs += BK
        w_ptrs += BK
    tl.store(out + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))


tokens, vocabulary, width = 4096, 131072, 2048
x = torch.randn(tokens, width, device="cuda", dtype=torch.bfloat16)
w = torch.randn(vocabulary, width, device="cuda", dtype=torch.bfloat16) / width**0.5
out = torch.empty(tokens, vocabulary, device="cuda", dtype=torch.bfloat16)
grid = (tokens // 128 * (vocabulary // 128),)
logits[grid](x, w, out, vocabulary, width, 128, 128, 64, num_warps=4, num_stages=4)
torch.testing.assert_close(out[:256], x[:256] @ w.T, rtol=0.02, atol=0.05)
