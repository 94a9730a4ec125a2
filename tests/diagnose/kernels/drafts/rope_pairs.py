"""Rotary embedding of neighbouring pairs."""

import torch
import triton
import triton.language as tl


@triton.jit
def rope(q, cos, sin, seq_len, D: tl.constexpr):
    token = tl.program_id(0)
    half: tl.constexpr = D // 2
    i = tl.arange(0, half)
    c = tl.load(cos + (token % seq_len) * half + i)
    s = tl.load(sin + (token % seq_len) * half + i)
    even = tl.load(q + token * D + 2 * i)  # planted: uncoalesced-access
    odd = tl.load(q + token * D + 2 * i + 1)
    tl.store(q + token * D + 2 * i, even * c - odd * s)
    tl.store(q + token * D + 2 * i + 1, even * s + odd * c)


q = torch.randn(16, 2048, 4096, device="cuda", dtype=torch.float16)
cos, sin = torch.randn(2, 2048, 2048, device="cuda", dtype=torch.float16).unbind(0)
even, odd = q.view(16, 2048, 2048, 2).unbind(3)
expected = torch.stack((even * cos - odd * sin, even * sin + odd * cos), 3).flatten(2)
rope[(16 * 2048,)](q, cos, sin, 2048, 4096)
torch.testing.assert_close(q, expected, rtol=0.01, atol=0.01)
