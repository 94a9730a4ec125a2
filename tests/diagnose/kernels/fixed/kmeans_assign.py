"""Nearest of 512 centres for each of 131072 SIFT descriptors (128 values up to 255): assignment step of k-means.

The products of descriptors and centres are made by tl.dot, and the centres' own squares are added.
"""

import torch
import triton
import triton.language as tl

POINTS = 131072
CENTRES = 512
DIM = 128


@triton.jit
def kmeans_assign(
    x_ptr,
    c_ptr,
    label_ptr,
    POINTS: tl.constexpr,
    CENTRES: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rk = tl.arange(0, DIM)[:, None]
    x = tl.load(x_ptr + rk * POINTS + rm[None, :])
    best = tl.full((BLOCK_M,), float("inf"), tl.float32)
    label = tl.zeros((BLOCK_M,), tl.int32)
    for n in range(0, CENTRES, BLOCK_N):
        rn = n + tl.arange(0, BLOCK_N)
        c = tl.load(c_ptr + rk * CENTRES + rn[None, :])
        square = tl.sum(c.to(tl.float32) * c.to(tl.float32), axis=0)
        dist = square[None, :] - 2.0 * tl.dot(x.T, c)
        low, at = tl.min(dist, axis=1, return_indices=True)
        closer = low < best
        label = tl.where(closer, n + at, label)
        best = tl.where(closer, low, best)
    tl.store(label_ptr + rm, label)


torch.manual_seed(0)
x = torch.randint(0, 256, (DIM, POINTS), device="cuda").bfloat16()
c = torch.randint(0, 256, (DIM, CENTRES), device="cuda").bfloat16()
label = torch.empty(POINTS, device="cuda", dtype=torch.int32)

kmeans_assign[(POINTS // 128,)](
    x, c, label, POINTS=POINTS, CENTRES=CENTRES, DIM=DIM, BLOCK_M=128, BLOCK_N=64, num_warps=4
)

dist = c.float().square().sum(0)[None, :] - 2 * (x.float().T @ c.float())
torch.testing.assert_close(dist.gather(1, label.long()[:, None])[:, 0], dist.amin(1), rtol=0, atol=0)
