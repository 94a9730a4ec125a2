"""Kepler's equation solved for the eccentric anomaly of four million orbits by Newton's method."""

import torch
import triton
import triton.language as tl

N = 1 << 22


@triton.jit
def kepler_solver(mean_ptr, eccentricity_ptr, out_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mean = tl.load(mean_ptr + i)
    e = tl.load(eccentricity_ptr + i)
    angle = mean + tl.where(tl.sin(mean) < 0, -0.85, 0.85) * e
    largest = 1.0
    while largest > 1e-4:
        step = (angle - e * tl.sin(angle) - mean) / (1.0 - e * tl.cos(angle))
        angle -= step
        largest = tl.max(tl.abs(step), axis=0)
    tl.store(out_ptr + i, angle)


torch.manual_seed(0)
mean = torch.rand(N, device="cuda") * 6.2831853
eccentricity = torch.rand(N, device="cuda") * 0.8
out = torch.empty_like(mean)

kepler_solver[(N // 512,)](mean, eccentricity, out, BLOCK=512, num_warps=4)

want = mean.double() + 0.85 * eccentricity * torch.sin(mean).sign()
for _ in range(12):
    want -= (want - eccentricity * torch.sin(want) - mean) / (1 - eccentricity * torch.cos(want))
torch.testing.assert_close(out, want.float(), rtol=1e-4, atol=1e-4)
