"""Add a bias and drop one value in ten, from a counter-based generator."""

import torch
import triton
import triton.language as tl

ROWS = 16384
WIDTH = 4096
KEEP = 0.9


@triton.jit
def bias_dropout(x_ptr, bias_ptr, y_ptr, seed, keep, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * (4 * BLOCK)
    lane = tl.arange(0, BLOCK)
    u = tl.rand4x(seed, tl.program_id(0) * BLOCK + lane)
    for quarter in tl.static_range(4):
        i = first + quarter * BLOCK + lane
        z = tl.load(x_ptr + i).to(tl.float32) + tl.load(bias_ptr + i % WIDTH).to(tl.float32)
        tl.store(y_ptr + i, tl.where(u[quarter] < keep, z / keep, 0.0).to(tl.bfloat16))


torch.manual_seed(0)
n = ROWS * WIDTH
x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)
bias = torch.randn(WIDTH, device="cuda", dtype=torch.bfloat16)
dropped = torch.empty_like(x)

bias_dropout[(n // 4096,)](x, bias, dropped, 1234, KEEP, WIDTH=WIDTH, BLOCK=1024, num_warps=4)

z = (x.float() + bias.float()) / KEEP
kept_of_four = (dropped != 0) | (z == 0)
torch.testing.assert_close(dropped.float(), torch.where(kept_of_four, z, 0.0), rtol=1e-2, atol=1e-2)
torch.testing.assert_close(
    kept_of_four.float().mean().item(), KEEP, rtol=0.0, atol=4 * (KEEP * (1 - KEEP) / n) ** 0.5 + 1e-4
)
