"""GEMM through pointers: `--stages` chooses how many tiles are under way, `--tiles` how many blocks there are."""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_kernel(a_ptr, b_ptr, c_ptr, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    n_tiles = tl.cdiv(N, BLOCK_N)
    rows = tl.program_id(0) // n_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = tl.program_id(0) % n_tiles * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rows[:, None] * K + k[None, :]
    b_ptrs = b_ptr + k[:, None] * N + cols[None, :]
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for _ in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs)
        b = tl.load(b_ptrs)
        acc = tl.dot(a, b, acc)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K * N
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], acc.to(c_ptr.dtype.element_ty))


def gemm(a, b, stages):
    """a [M, K] @ b [K, N]; M in tiles of 128, N of 256, K of 64."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    grid = (m // 128 * (n // 256),)
    gemm_kernel[grid](a, b, c, n, k, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=stages)
    return c


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--stages", type=int, default=3)
    parser.add_argument("--tiles", type=int, help="as many tiles in one column, instead of M = N = K")
    parser.add_argument("--size", type=int, default=8192)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    m, n = (128 * args.tiles, 256) if args.tiles else (args.size, args.size)
    a = torch.randn(m, args.size, device=device, dtype=torch.bfloat16)
    b = torch.randn(args.size, n, device=device, dtype=torch.bfloat16)
    reference = a.float() @ b.float()
    error = (gemm(a, b, args.stages).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: gemm(a, b, args.stages))
    print(f"GEMM {m} x {n} x {args.size}, {args.stages} stages: error {error:.1e}, {ms:.3f} ms, ", end="")
    print(f"{2 * m * n * args.size / ms / 1e9:.0f} TFLOPS")
