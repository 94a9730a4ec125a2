"""Eight programs a head, whose parts are added."""

import torch
import triton
import triton.language as tl


@triton.jit
def head_norm(x, y, n, PARTS: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    part = n // PARTS
    first = tl.program_id(1) * part
    for start in range(first, first + part, BLOCK):
        acc += tl.load(x + head * n + start + tl.arange(0, BLOCK)).to(tl.float32)
    tl.atomic_add(y + head, tl.sum(acc, 0))


x = torch.randn(16, 1 << 20, device="cuda", dtype=torch.bfloat16)
y = torch.zeros(16, device="cuda")
head_norm[(16, 8)](x, y, 1 << 20, 8, 4096, num_warps=8)
torch.testing.assert_close(y, x.sum(1, dtype=torch.float32), rtol=1e-3, atol=1e-1)
