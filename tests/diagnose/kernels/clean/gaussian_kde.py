"""Density of 32768 points in the plane at 32768 places, with a Gaussian kernel.

A pair costs one exponential and six plain operations, which overlap; the sums are joined once after the loop. The
special function units set the time.
"""

import torch
import triton
import triton.language as tl

QUERIES = 32768
POINTS = 32768


@triton.jit
def gaussian_kde(q_ptr, p_ptr, out_ptr, queries, points, scale, BLOCK_Q: tl.constexpr, BLOCK_P: tl.constexpr):
    q = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    qx = tl.load(q_ptr + q)
    qy = tl.load(q_ptr + queries + q)
    acc = tl.zeros((BLOCK_Q, BLOCK_P), tl.float32)
    for start in range(0, points, BLOCK_P):
        p = start + tl.arange(0, BLOCK_P)
        dx = qx[:, None] - tl.load(p_ptr + p)[None, :]
        dy = qy[:, None] - tl.load(p_ptr + points + p)[None, :]
        acc += tl.exp2((dx * dx + dy * dy) * scale)
    tl.store(out_ptr + q, tl.sum(acc, axis=1) / points)


torch.manual_seed(0)
places = torch.randn(2, QUERIES, device="cuda")
points = torch.randn(2, POINTS, device="cuda")
out = torch.empty(QUERIES, device="cuda")

gaussian_kde[(QUERIES // 64,)](
    places, points, out, QUERIES, POINTS, -0.5 / 0.04 * 1.4426950408889634, BLOCK_Q=64, BLOCK_P=128, num_warps=8
)

for part in range(0, QUERIES, 4096):
    d = places[:, part : part + 4096, None] - points[:, None, :]
    want = torch.exp((d[0] ** 2 + d[1] ** 2) * (-0.5 / 0.04)).mean(1)
    torch.testing.assert_close(out[part : part + 4096], want, rtol=1e-3, atol=1e-5)
