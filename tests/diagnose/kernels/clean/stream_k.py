"""Stream-K: each CTA takes an equal part of all iterations; a tile's end is in the outer loop."""

import torch
import triton
import triton.language as tl


@triton.jit
def part_of_tile(a, b, c, N, K, first, last, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    tile = first // steps
    rm = tile // tl.cdiv(N, BN) * BM + tl.arange(0, BM)
    rn = tile % tl.cdiv(N, BN) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    a_ptrs = a + rm[:, None] * K + rk[None, :] + BK * (first % steps)
    b_ptrs = b + rk[:, None] * N + rn[None, :] + BK * N * (first % steps)
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(first, last):
        acc = tl.dot(tl.load(a_ptrs), tl.load(b_ptrs), acc)
        a_ptrs += BK
        b_ptrs += BK * N
    tile_ptrs = c + rm[:, None] * N + rn[None, :]
    if first % steps == 0 and last % steps == 0:
        tl.store(tile_ptrs, acc)
    else:
        tl.atomic_add(tile_ptrs, acc, sem="relaxed")


@triton.jit
def stream_k(a, b, c, N, K, total, steps, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    each = tl.cdiv(total, tl.num_programs(0))
    first = tl.program_id(0) * each
    end = min(first + each, total)
    while first < end:
        last = min(first + steps - first % steps, end)
        part_of_tile(a, b, c, N, K, first, last, steps, BM, BN, BK)
        first = last


m, n, k = 1536, 1536, 8192
a = torch.randn(m, k, device="cuda", dtype=torch.float16)
b = torch.randn(k, n, device="cuda", dtype=torch.float16)
c = torch.zeros(m, n, device="cuda")
stream_k[(132,)](a, b, c, n, k, k // 64 * 144, k // 64, 128, 128, 64, num_warps=4, num_stages=4)
torch.testing.assert_close(c, a.float() @ b.float(), rtol=1e-2, atol=0.1)
