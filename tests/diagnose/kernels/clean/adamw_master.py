"""AdamW over fp32 master weights.

Fine as it is: moments and master weights must be fp32 (bf16 loses updates below 2^-8 of the weight), every byte
is read and written once, so the kernel runs at memory speed; the tail mask is one compare per vector, and the
bias corrections are computed on the host.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def adamw(p_ptr, g_ptr, m_ptr, v_ptr, p16_ptr, n, lr, beta1, beta2, eps, wd, corr1, corr2, BLOCK: tl.constexpr):
    off = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = off < n
    p = tl.load(p_ptr + off, mask=mask)
    g = tl.load(g_ptr + off, mask=mask).to(tl.float32)
    m = tl.load(m_ptr + off, mask=mask)
    v = tl.load(v_ptr + off, mask=mask)
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    p = p * (1 - lr * wd) - lr * (m / corr1) / (tl.sqrt(v / corr2) + eps)
    tl.store(p_ptr + off, p, mask=mask)
    tl.store(m_ptr + off, m, mask=mask)
    tl.store(v_ptr + off, v, mask=mask)
    tl.store(p16_ptr + off, p.to(tl.bfloat16), mask=mask)


torch.manual_seed(0)
n = 4096 * 8192
p = torch.randn(n, device="cuda")
g = torch.randn(n, device="cuda", dtype=torch.bfloat16)
m = torch.randn(n, device="cuda") * 0.1
v = torch.rand(n, device="cuda")
p16 = torch.empty(n, device="cuda", dtype=torch.bfloat16)
lr, beta1, beta2, eps, wd, t = 1e-3, 0.9, 0.95, 1e-8, 0.1, 10
m_ref = beta1 * m + (1 - beta1) * g.float()
v_ref = beta2 * v + (1 - beta2) * g.float() ** 2
p_ref = p * (1 - lr * wd) - lr * (m_ref / (1 - beta1**t)) / ((v_ref / (1 - beta2**t)).sqrt() + eps)
adamw[(triton.cdiv(n, 1024),)](
    p, g, m, v, p16, n, lr, beta1, beta2, eps, wd, 1 - beta1**t, 1 - beta2**t, BLOCK=1024, num_warps=4
)
torch.testing.assert_close(p, p_ref, rtol=1e-4, atol=1e-4)
torch.testing.assert_close(p16.float(), p_ref, rtol=1e-2, atol=1e-3)
