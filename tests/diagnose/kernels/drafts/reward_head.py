"""A linear layer and, from the same tiles, the largest input of each row.

Fault: registers and the MMA use a tile of x, for which Triton makes one buffer too few: the loop copies the tile of a
later iteration into the buffer that the MMA of this iteration may still read.
Fix: load the tile a second time for the registers, with another policy of eviction, since equal loads become one; with
num_stages in tl.range the compiler pipelines that load too.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def linear_and_range(x, w, out, ranges, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tl.assume(K > 0)
    rm = tl.program_id(0) * BM + tl.arange(0, BM)
    rn = tl.program_id(1) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    x_ptrs = x + rm[:, None] * K + rk[None, :]
    w_ptrs = w + rk[:, None] * N + rn[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    most = tl.zeros((BM,), tl.float32)
    for _ in range(0, K, BK):
        a = tl.load(x_ptrs)  # planted: buffer-race
        acc = tl.dot(a, tl.load(w_ptrs), acc)
        most = tl.maximum(most, tl.max(tl.abs(a.to(tl.float32)), 1))
        x_ptrs += BK
        w_ptrs += BK * N
    tl.store(out + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))
    tl.store(ranges + rm, most)


tokens, hidden, outputs = 65536, 4096, 128
torch.manual_seed(0)
x = torch.randn(tokens, hidden, device="cuda").bfloat16()
w = torch.randn(hidden, outputs, device="cuda").bfloat16()
out = torch.empty(tokens, outputs, device="cuda", dtype=torch.bfloat16)
ranges = torch.empty(tokens, device="cuda")
linear_and_range[(tokens // 128, 1)](x, w, out, ranges, outputs, hidden, BM=128, BN=128, BK=64, num_warps=8)
torch.testing.assert_close(out, x @ w, rtol=0.02, atol=1.0)
torch.testing.assert_close(ranges, x.abs().amax(1).float())
