"""A good GEMM with tensor descriptors."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def gemm(a_desc, b_desc, c, M, N, K, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_m, pid_n = tl.program_id(0), tl.program_id(1)
    rm = pid_m * BM + tl.arange(0, BM)
    rn = pid_n * BN + tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in range(0, K, BK):
        acc = tl.dot(a_desc.load([pid_m * BM, k]), b_desc.load([k, pid_n * BN]), acc)
    tl.store(c + rm[:, None] * sc + rn[None, :], acc.to(c.dtype.element_ty))


m, n, k = 4096, 4096, 4096
a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
a_desc, b_desc = TensorDescriptor.from_tensor(a, [128, 64]), TensorDescriptor.from_tensor(b, [64, 256])
gemm[(m // 128, n // 256)](a_desc, b_desc, c, m, n, k, n, 128, 256, 64, num_warps=8, num_stages=3)
torch.testing.assert_close(c, a @ b, rtol=0.02, atol=1)
