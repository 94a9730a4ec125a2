"""Histogram of an 8-bit image stack into 256 bins.
Fault: each pixel does its own atomic on the 256 global counters; tens of millions of atomics to the same 1 KB queue
up in L2. Fix: count the block on chip with tl.histogram, keep the counts in registers over the loop, and add the 256
totals to the global counters once per program."""

import torch
import triton
import triton.language as tl

NPIX = 32 * 1024 * 1024
BLOCK, ITERS = 4096, 8


@triton.jit
def histogram_kernel(x_ptr, hist_ptr, n, BLOCK: tl.constexpr, ITERS: tl.constexpr):
    base = tl.program_id(0) * BLOCK * ITERS
    for i in range(ITERS):
        offs = base + i * BLOCK + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + offs, mask=offs < n, other=0).to(tl.int32)
        tl.atomic_add(hist_ptr + x, 1, mask=offs < n, sem="relaxed")  # planted: atomic-contention


torch.manual_seed(0)
img = (torch.randn(NPIX, device="cuda") * 40 + 110).clamp(0, 255).to(torch.uint8)
hist = torch.zeros(256, device="cuda", dtype=torch.int32)

histogram_kernel[(triton.cdiv(NPIX, BLOCK * ITERS),)](img, hist, NPIX, BLOCK, ITERS, num_warps=8)

torch.testing.assert_close(hist.long(), torch.bincount(img.long(), minlength=256))
