"""Last product of a Newton-Schulz step in Muon: a X + B X with B and X of 4096 x 4096, bf16, by TMA.

Tiles of 128 x 256 with two warp groups and 64 deep stages, eight rows of tiles at a time so that what is read stays in
L2; a X is added from a tile that TMA brings after the loop. 512 tiles are 3.9 waves.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

SIZE = 4096


@triton.jit
def newton_schulz(
    b_desc,
    x_desc,
    x_tile_desc,
    y_desc,
    a,
    SIZE,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    pid = tl.program_id(0)
    wide = SIZE // BLOCK_N
    m = (pid // (GROUP * wide) * GROUP + pid % GROUP) * BLOCK_M
    n = pid % (GROUP * wide) // GROUP * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, SIZE, BLOCK_K):
        acc = tl.dot(b_desc.load([m, k]), x_desc.load([k, n]), acc)
    acc += a * x_tile_desc.load([m, n]).to(tl.float32)
    y_desc.store([m, n], acc.to(tl.bfloat16))


BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
torch.manual_seed(0)
b = (torch.randn(SIZE, SIZE, device="cuda") * SIZE**-0.5).bfloat16()
x = torch.randn(SIZE, SIZE, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)

newton_schulz[(SIZE // BLOCK_M * SIZE // BLOCK_N,)](
    TensorDescriptor.from_tensor(b, [BLOCK_M, BLOCK_K]),
    TensorDescriptor.from_tensor(x, [BLOCK_K, BLOCK_N]),
    TensorDescriptor.from_tensor(x, [BLOCK_M, BLOCK_N]),
    TensorDescriptor.from_tensor(y, [BLOCK_M, BLOCK_N]),
    3.4445,
    SIZE,
    BLOCK_M=BLOCK_M,
    BLOCK_N=BLOCK_N,
    BLOCK_K=BLOCK_K,
    GROUP=8,
    num_warps=8,
    num_stages=3,
)

torch.testing.assert_close(y.float(), 3.4445 * x.float() + b.float() @ x.float(), rtol=2e-2, atol=2e-2)
