"""One program a head, and sixteen heads."""

import torch
import triton
import triton.language as tl


@triton.jit
def head_norm(x, y, n, BLOCK: tl.constexpr):  # planted: launch-too-small
    head = tl.program_id(0)
    acc = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, n, BLOCK):
        acc += tl.load(x + head * n + start + tl.arange(0, BLOCK)).to(tl.float32)
    tl.store(y + head, tl.sum(acc, 0))


x = torch.randn(16, 1 << 20, device="cuda", dtype=torch.bfloat16)
y = torch.empty(16, device="cuda")
head_norm[(16,)](x, y, 1 << 20, 4096, num_warps=8)
torch.testing.assert_close(y, x.sum(1, dtype=torch.float32), rtol=1e-3, atol=1e-1)
