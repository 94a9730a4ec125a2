"""A fused optimiser step."""

import torch
import triton
import triton.language as tl


@triton.jit
def adam(p, g, m, v, lr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = i < n
    grad = tl.load(g + i, mask=mask).to(tl.float32)
    first = 0.9 * tl.load(m + i, mask=mask) + 0.1 * grad
    second = 0.95 * tl.load(v + i, mask=mask) + 0.05 * grad * grad
    weight = tl.load(p + i, mask=mask) - lr * first / (tl.sqrt(second) + 1e-8)
    tl.store(m + i, first, mask=mask)
    tl.store(v + i, second, mask=mask)
    tl.store(p + i, weight, mask=mask)


n = 1 << 27
p, m, v = (torch.zeros(n, device="cuda") for _ in range(3))
g = torch.randn(n, device="cuda").bfloat16()
adam[(n // 1024,)](p, g, m, v, 1e-3, n, 1024, num_warps=4)
torch.testing.assert_close(m, 0.1 * g.float())
torch.testing.assert_close(p, -1e-3 * m / (v.sqrt() + 1e-8))
