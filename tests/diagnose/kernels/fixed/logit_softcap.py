"""Logits capped softly by 30 tanh(x / 30)."""

import torch
import triton
import triton.language as tl

N = 1 << 26
CAP = 30.0


@triton.jit
def logit_softcap(x_ptr, out_ptr, n, cap, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    y = cap - 2.0 * cap / (1.0 + tl.exp(x * (2.0 / cap)))
    tl.store(out_ptr + i, y.to(tl.bfloat16), mask=i < n)


torch.manual_seed(0)
x = torch.randn(N, device="cuda", dtype=torch.bfloat16) * 40
out = torch.empty_like(x)

logit_softcap[(triton.cdiv(N, 2048),)](x, out, N, CAP, BLOCK=2048, num_warps=4)

torch.testing.assert_close(out.float(), CAP * torch.tanh(x.float() / CAP), rtol=1e-2, atol=1e-2)
