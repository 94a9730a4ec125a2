"""GEMM through TMA: a, b and c are tensor descriptors made on the host."""

import argparse

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def gemm_tma_kernel(a_desc, b_desc, c_desc, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):
    n_tiles = tl.cdiv(N, BLOCK_N)
    row = tl.program_id(0) // n_tiles * BLOCK_M
    col = tl.program_id(0) % n_tiles * BLOCK_N
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in range(0, K, BLOCK_K):
        a = a_desc.load([row, k])
        b = b_desc.load([k, col])
        acc = tl.dot(a, b, acc)
    c_desc.store([row, col], acc.to(c_desc.dtype))


def gemm(a, b):
    """a [M, K] @ b [K, N]; M in tiles of 128, N of 256, K of 64."""
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    a_desc = TensorDescriptor.from_tensor(a, [128, 64])
    b_desc = TensorDescriptor.from_tensor(b, [64, 256])
    c_desc = TensorDescriptor.from_tensor(c, [128, 256])
    grid = (m // 128 * (n // 256),)
    gemm_tma_kernel[grid](a_desc, b_desc, c_desc, n, k, BLOCK_M=128, BLOCK_N=256, BLOCK_K=64, num_warps=8, num_stages=3)
    return c


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=8192)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    a, b = torch.randn(2, args.size, args.size, device=device).bfloat16()
    reference = a.float() @ b.float()
    error = (gemm(a, b).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: gemm(a, b))
    print(f"GEMM {args.size}^3, TMA: error {error:.1e}, {ms:.3f} ms, {2 * args.size**3 / ms / 1e9:.0f} TFLOPS")
