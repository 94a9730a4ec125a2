"""A layer norm that reads its row once."""

import torch
import triton
import triton.language as tl


@triton.jit
def layer_norm(x, y, w, b, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    mask = i < columns
    values = tl.load(x + row * columns + i, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(values, 0) / columns
    centred = tl.where(mask, values - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 0) / columns + eps)
    out = centred * rstd * tl.load(w + i, mask=mask) + tl.load(b + i, mask=mask)
    tl.store(y + row * columns + i, out, mask=mask)


x = torch.randn(16384, 4096, device="cuda", dtype=torch.bfloat16)
w, b = torch.randn(2, 4096, device="cuda", dtype=torch.bfloat16).unbind(0)
y = torch.empty_like(x)
layer_norm[(16384,)](x, y, w, b, 4096, 1e-5, 4096, num_warps=8)
torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (4096,), w, b), rtol=0.02, atol=0.05)
