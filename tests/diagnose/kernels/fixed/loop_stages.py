"""Products of a batch, in a loop that asks for four stages."""

import torch
import triton
import triton.language as tl


@triton.jit
def bmm(a, b, c, N, K, sa, sb, sc, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    batch = tl.program_id(2)
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), tl.float32)
    for k in tl.range(0, K, BK, num_stages=4):
        x = tl.load(a + batch * sa + rm[:, None] * K + (k + rk)[None, :])
        y = tl.load(b + batch * sb + rn[None, :] * K + (k + rk)[:, None])
        acc = tl.dot(x, y, acc)
    tl.store(c + batch * sc + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))


size = 2048
a, b = torch.randn(2, 16, size, size, device="cuda", dtype=torch.bfloat16).unbind(0)
c = torch.empty_like(a)
bmm[(16, 16, 16)](a, b, c, size, size, size**2, size**2, size**2, 128, 128, 32, num_warps=4)
torch.testing.assert_close(c, a @ b.mT, rtol=0.02, atol=1)
