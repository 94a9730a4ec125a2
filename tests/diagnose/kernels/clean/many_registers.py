"""A fused optimiser step whose values fill the registers: few warps fit, which have enough loads in flight."""

import torch
import triton
import triton.language as tl


@triton.jit
def step(p, g, m, v, a, b, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    grad = tl.load(g + i)
    first = tl.load(m + i)
    second = tl.load(v + i)
    weight = tl.load(p + i)
    slow = tl.load(a + i)
    fast = tl.load(b + i)
    mixed = tl.sum(grad * slow, 0) + tl.sum(first * fast, 0)
    first = 0.9 * first + 0.1 * grad * mixed
    second = 0.99 * second + 0.01 * grad * grad
    tl.store(m + i, first)
    tl.store(v + i, second)
    tl.store(a + i, 0.5 * (slow + weight))
    tl.store(b + i, 0.5 * (fast + weight))
    tl.store(p + i, weight - 1e-3 * first / (tl.sqrt(second) + 1e-8))


n = 1 << 26
p, g, m, v, a, b = tensors = [torch.rand(n, device="cuda") for _ in range(6)]
expected = (0.5 * (a + p)).clone()
step[(n // 4096,)](*tensors, n, 4096, num_warps=4)
torch.testing.assert_close(a, expected)
