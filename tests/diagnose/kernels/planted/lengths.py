"""A kernel that is compiled for each length of a batch."""

import torch
import triton
import triton.language as tl


@triton.jit
def scale(x, out, n: tl.constexpr, BLOCK: tl.constexpr):  # planted: recompiled-often
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


x = torch.randn(1 << 27, device="cuda")
out = torch.empty_like(x)
for n in (100_000_000, 99_999_936, 77_772_800, 64_000_000, 51_200_000):
    scale[(triton.cdiv(n, 2048),)](x, out, n, 2048)
assert torch.equal(out[:100_000_000], 2 * x[:100_000_000])
