"""An activation of what a mask in memory keeps."""

import torch
import triton
import triton.language as tl


@triton.jit
def keep_gelu(x, keep, y, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    kept = tl.load(keep + i, mask=i < n, other=0) != 0
    values = tl.load(x + i, mask=kept & (i < n), other=0.0).to(tl.float32)  # planted: mask-stops-vectors
    tl.store(y + i, (values * tl.sigmoid(1.702 * values)).to(tl.bfloat16), mask=i < n)


n = 1 << 26
x = torch.randn(n, device="cuda", dtype=torch.bfloat16)
keep = (torch.rand(n, device="cuda") > 0.5).to(torch.int8)
y = torch.empty_like(x)
keep_gelu[(n // 2048,)](x, keep, y, n, 2048, num_warps=8)
kept = x.float() * keep
torch.testing.assert_close(y, (kept * torch.sigmoid(1.702 * kept)).bfloat16(), rtol=0.02, atol=1e-5)
