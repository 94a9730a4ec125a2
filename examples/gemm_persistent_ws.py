"""Persistent GEMM with automatic warp specialisation: a block an SM, which computes one tile after another.

On Hopper the compiler specialises with 4 warps, tiles of 128 rows and descriptors made on the device; not with a
flattened loop.
"""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def gemm_persistent(
    a_ptr, b_ptr, c_ptr, M, N, K, N_BLOCKS: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    a_desc = tl.make_tensor_descriptor(a_ptr, [M, K], [K, 1], [BLOCK_M, BLOCK_K])
    b_desc = tl.make_tensor_descriptor(b_ptr, [N, K], [K, 1], [BLOCK_N, BLOCK_K])
    c_desc = tl.make_tensor_descriptor(c_ptr, [M, N], [N, 1], [BLOCK_M, BLOCK_N])
    n_tiles = tl.cdiv(N, BLOCK_N)
    tiles = tl.cdiv(M, BLOCK_M) * n_tiles
    for tile in tl.range(tl.program_id(0), tiles, N_BLOCKS, warp_specialize=True):
        row = tile // n_tiles * BLOCK_M
        col = tile % n_tiles * BLOCK_N
        acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        for k in range(0, K, BLOCK_K):
            a = a_desc.load([row, k])
            b = b_desc.load([col, k])
            acc = tl.dot(a, b.T, acc)
        c_desc.store([row, col], acc.to(c_desc.dtype))


def gemm(a, b_t, n_blocks):
    """a [M, K] @ b_t [N, K] transposed; M and N in tiles of 128, K of 64."""
    (m, k), n = a.shape, b_t.shape[0]
    c = torch.empty(m, n, device=a.device, dtype=a.dtype)
    triton.set_allocator(lambda size, _align, _stream: torch.empty(size, device=a.device, dtype=torch.int8))
    gemm_persistent[(n_blocks,)](
        a, b_t, c, m, n, k, N_BLOCKS=n_blocks, BLOCK_M=128, BLOCK_N=128, BLOCK_K=64, num_warps=4, num_stages=3
    )
    return c


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size", type=int, default=8192)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n_blocks = torch.cuda.get_device_properties(0).multi_processor_count if device == "cuda" else 132
    a, b_t = torch.randn(2, args.size, args.size, device=device).bfloat16()
    reference = a.float() @ b_t.float().T
    error = (gemm(a, b_t, n_blocks).float() - reference).norm() / reference.norm()
    assert error < 5e-3, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: gemm(a, b_t, n_blocks))
    print(f"persistent GEMM {args.size}^3: error {error:.1e}, {ms:.3f} ms, {2 * args.size**3 / ms / 1e9:.0f} TFLOPS")
