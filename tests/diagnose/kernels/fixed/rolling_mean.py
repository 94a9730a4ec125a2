"""Moving averages of price series over the last WINDOW ticks; a series has WINDOW ticks of history before the first."""

import torch
import triton
import triton.language as tl

SERIES = 2048
TICKS = 16384
WINDOW = 256


@triton.jit
def rolling_mean(price_ptr, mean_ptr, TICKS: tl.constexpr, WINDOW: tl.constexpr, CHUNKS: tl.constexpr):
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    t = chunk[:, None] * WINDOW + tl.arange(0, WINDOW)[None, :]
    series = tl.program_id(1)
    price_ptr += series * (WINDOW + TICKS)
    before = tl.load(price_ptr + t)
    after = tl.load(price_ptr + t + WINDOW)
    total = tl.sum(before, axis=1)[:, None] - tl.cumsum(before, axis=1) + tl.cumsum(after, axis=1)
    tl.store(mean_ptr + series * TICKS + t, total / WINDOW)


torch.manual_seed(0)
price = 100 + torch.randn(SERIES, WINDOW + TICKS, device="cuda")
mean = torch.empty(SERIES, TICKS, device="cuda")

rolling_mean[(TICKS // (8 * WINDOW), SERIES)](price, mean, TICKS=TICKS, WINDOW=WINDOW, CHUNKS=8, num_warps=4)

running = price.double().cumsum(1)
want = (running[:, WINDOW:] - running[:, :-WINDOW]) / WINDOW
torch.testing.assert_close(mean, want.float(), atol=1e-3, rtol=1e-5)
