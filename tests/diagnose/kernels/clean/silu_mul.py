"""The gate of a SwiGLU."""

import torch
import triton
import triton.language as tl


@triton.jit
def silu_mul(x, out, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    gate = tl.load(x + row * 2 * columns + i, mask=i < columns).to(tl.float32)
    up = tl.load(x + row * 2 * columns + columns + i, mask=i < columns).to(tl.float32)
    tl.store(out + row * columns + i, (gate * tl.sigmoid(gate) * up).to(tl.bfloat16), mask=i < columns)


x = torch.randn(16384, 2 * 14336, device="cuda", dtype=torch.bfloat16)
out = torch.empty(16384, 14336, device="cuda", dtype=torch.bfloat16)
silu_mul[(16384, 14)](x, out, 14336, 1024, num_warps=4)
gate, up = x.chunk(2, 1)
torch.testing.assert_close(out, torch.nn.functional.silu(gate.float()).mul(up).bfloat16(), rtol=0.02, atol=0.01)
