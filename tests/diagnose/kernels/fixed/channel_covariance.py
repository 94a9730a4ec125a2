"""Second moments of the channels of a recording, samples in float16, as a principal component analysis begins."""

import torch
import triton
import triton.language as tl

SAMPLES, CHANNELS = 8192, 4096


@triton.jit
def covariance(samples_ptr, out_ptr, SAMPLES, CHANNELS, BLOCK: tl.constexpr, STEP: tl.constexpr):
    left = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    right = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    step = tl.arange(0, STEP)
    total = tl.zeros((BLOCK, BLOCK), tl.float32)
    for first in range(0, SAMPLES, STEP):
        rows = samples_ptr + (first + step)[:, None] * CHANNELS
        a = tl.load(rows + left[None, :])
        b = tl.load(rows + right[None, :])
        total = tl.dot(tl.trans(a), b, total)
    tl.store(out_ptr + left[:, None] * CHANNELS + right[None, :], total / SAMPLES)


torch.manual_seed(0)
samples = torch.rand(SAMPLES, CHANNELS, device="cuda", dtype=torch.float16)
out = torch.empty(CHANNELS, CHANNELS, device="cuda")
covariance[(CHANNELS // 128, CHANNELS // 128)](
    samples, out, SAMPLES, CHANNELS, BLOCK=128, STEP=32, num_warps=8, num_stages=3
)
torch.testing.assert_close(out, samples.float().T @ samples.float() / SAMPLES, rtol=1e-3, atol=1e-3)
