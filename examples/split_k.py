"""Split-K GEMM: a small result from long rows; the blocks that share a tile add to it with atomics."""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_split_k(
    a_ptr, b_ptr, c_ptr, N, K, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    n_tiles = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // n_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * K + k[None, :]
    b_ptrs = b_ptr + k[:, None] * N + cols[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, K, BLOCK_K * SPLITS):
        a = tl.load(a_ptrs)
        b = tl.load(b_ptrs)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K * SPLITS
        b_ptrs += BLOCK_K * SPLITS * N
    tl.atomic_add(c_ptr + rows[:, None] * N + cols[None, :], acc, sem="relaxed")


def gemm(a, b, splits):
    """a [M, K] @ b [K, N] in float32; M and N in tiles of 128, K of 64 * splits."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.zeros(m, n, device=a.device, dtype=torch.float32)
    gemm_split_k[(m // 128 * (n // 128), splits)](
        a, b, c, n, k, SPLITS=splits, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=8, num_stages=3
    )
    return c


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--k", type=int, default=65536)
    parser.add_argument("--splits", type=int, default=16)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a = torch.randn(args.size, args.k, device=device, dtype=torch.bfloat16)
    b = torch.randn(args.k, args.size, device=device, dtype=torch.bfloat16)
    reference = a.float() @ b.float()
    error = (gemm(a, b, args.splits) - reference).norm() / reference.norm()
    assert error < 1e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: gemm(a, b, args.splits))
    print(f"GEMM {args.size} x {args.size} x {args.k}, {args.splits} splits: error {error:.1e}, {ms:.3f} ms")
