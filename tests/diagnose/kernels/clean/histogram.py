"""Counts of bytes: each CTA counts 64 tiles, then adds its 256 counts to those of all."""

import torch
import triton
import triton.language as tl


@triton.jit
def count(x, counts, n, BLOCK: tl.constexpr, TILES: tl.constexpr):
    own = tl.zeros((256,), tl.int32)
    for tile in range(TILES):
        i = (tl.program_id(0) * TILES + tile) * BLOCK + tl.arange(0, BLOCK)
        own += tl.histogram(tl.load(x + i, mask=i < n, other=0).to(tl.int32), 256)
    tl.atomic_add(counts + tl.arange(0, 256), own, sem="relaxed")


n = 1 << 28
x = torch.randint(0, 256, (n,), device="cuda", dtype=torch.uint8)
counts = torch.zeros(256, device="cuda", dtype=torch.int32)
count[(n // (4096 * 64),)](x, counts, n, 4096, 64)
expected = sum(torch.bincount(part, minlength=256) for part in x.split(1 << 25))
assert torch.equal(counts.long(), expected)
