"""Lion step with the gradient clipped by its norm, given the partial sums of squares a former kernel left.

Fault: every program adds all 16384 partial sums up again before it starts. That is 64 KB per program for 10 to 14 KB of
its own work, 4.3 GB out of L2 for 65536 programs, 780 us at 5.5 TB/s, beside 0.9 GB of memory traffic (285 us).
Fix: add the partial sums up once, ahead of the launch, and have the kernel load one number.
"""

import torch
import triton
import triton.language as tl

N = 1 << 26
LR = 1e-3


@triton.jit
def lion(p_ptr, m_ptr, g_ptr, partial_ptr, lr, limit, decay, PARTIALS: tl.constexpr, BLOCK: tl.constexpr):
    total = tl.sum(tl.load(partial_ptr + tl.arange(0, PARTIALS)), axis=0)  # planted: redundant-load
    clip = tl.minimum(limit / tl.sqrt(total), 1.0)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    g = tl.load(g_ptr + i).to(tl.float32) * clip
    m = tl.load(m_ptr + i).to(tl.float32)
    p = tl.load(p_ptr + i)
    u = 0.9 * m + 0.1 * g
    sign = tl.where(u > 0, 1.0, tl.where(u < 0, -1.0, 0.0))
    tl.store(p_ptr + i, p - lr * (sign + decay * p))
    tl.store(m_ptr + i, (0.99 * m + 0.01 * g).to(tl.bfloat16))


torch.manual_seed(0)
p = torch.randn(N, device="cuda")
m = torch.randn(N, device="cuda").mul_(0.01).bfloat16()
g = torch.randn(N, device="cuda", dtype=torch.bfloat16)
partial = g.float().square().view(-1, N // 16384).sum(1)
clip = (1000.0 / partial.sum().sqrt()).clamp(max=1.0)
u = 0.9 * m.float() + 0.1 * g.float() * clip
p_want = p - LR * (u.sign() + 0.1 * p)
m_want = 0.99 * m.float() + 0.01 * g.float() * clip
sure = u.abs() > 1e-6  # where rounding cannot turn the sign

lion[(N // 1024,)](p, m, g, partial, LR, 1000.0, 0.1, PARTIALS=16384, BLOCK=1024, num_warps=4)

torch.testing.assert_close(p[sure], p_want[sure], rtol=1e-5, atol=1e-5)
torch.testing.assert_close(m.float(), m_want, rtol=1e-2, atol=1e-5)
