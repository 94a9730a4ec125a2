"""A persistent GEMM with tensor descriptors."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def gemm(a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, SMS: tl.constexpr):
    tiles_n = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tl.cdiv(M, BM) * tiles_n, SMS, flatten=True):
        m, n = tile // tiles_n * BM, tile % tiles_n * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(a.load([m, k]), b.load([n, k]).T, acc)
        c.store([m, n], acc.to(tl.bfloat16))


a, b = torch.randn(2, 8192, 8192, device="cuda", dtype=torch.bfloat16).unbind(0)
c = torch.empty_like(a)
tiles = [TensorDescriptor.from_tensor(t, s) for t, s in ((a, [128, 64]), (b, [256, 64]), (c, [128, 256]))]
gemm[(132,)](*tiles, 8192, 8192, 8192, 128, 256, 64, 132, num_warps=8, num_stages=3)
torch.testing.assert_close(c, a @ b.T, rtol=0.02, atol=1)
