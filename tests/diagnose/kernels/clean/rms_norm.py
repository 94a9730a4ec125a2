"""An RMS norm with a residual."""

import torch
import triton
import triton.language as tl


@triton.jit
def rms_norm(x, residual, y, w, columns, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    i = tl.arange(0, BLOCK)
    values = tl.load(x + row * columns + i).to(tl.float32) + tl.load(residual + row * columns + i).to(tl.float32)
    tl.store(residual + row * columns + i, values.to(tl.bfloat16))
    rstd = tl.rsqrt(tl.sum(values * values, 0) / columns + eps)
    tl.store(y + row * columns + i, (values * rstd * tl.load(w + i)).to(tl.bfloat16))


x, residual = torch.randn(2, 16384, 8192, device="cuda", dtype=torch.bfloat16).unbind(0)
w = torch.randn(8192, device="cuda", dtype=torch.bfloat16)
y, total = torch.empty_like(x), x.float() + residual
rms_norm[(16384,)](x, residual, y, w, 8192, 1e-5, 8192, num_warps=16)
expected = torch.nn.functional.rms_norm(total, (8192,), w.float(), 1e-5).bfloat16()
torch.testing.assert_close(y, expected, rtol=0.02, atol=0.01)
