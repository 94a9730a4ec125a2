"""Moving averages of price series over the last WINDOW ticks; a series has WINDOW ticks of history before the first.

Fault: each output adds up its whole window, 256 loads and additions, although it shares 255 of them with its neighbour.
Fix: running sums within chunks as long as the window: a window is the end of one chunk and the beginning of the next,
so two loads and two scans do for each output.
"""

import torch
import triton
import triton.language as tl

SERIES = 2048
TICKS = 16384
WINDOW = 256


@triton.jit
def rolling_mean(price_ptr, mean_ptr, TICKS: tl.constexpr, WINDOW: tl.constexpr, BLOCK: tl.constexpr):
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    series = tl.program_id(1)
    price_ptr += series * (WINDOW + TICKS)
    total = tl.zeros((BLOCK,), tl.float32)
    for back in range(WINDOW):
        total += tl.load(price_ptr + t + 1 + back)  # planted: window-summed-anew
    tl.store(mean_ptr + series * TICKS + t, total / WINDOW)


torch.manual_seed(0)
price = 100 + torch.randn(SERIES, WINDOW + TICKS, device="cuda")
mean = torch.empty(SERIES, TICKS, device="cuda")

rolling_mean[(TICKS // 1024, SERIES)](price, mean, TICKS=TICKS, WINDOW=WINDOW, BLOCK=1024, num_warps=4)

running = price.double().cumsum(1)
want = (running[:, WINDOW:] - running[:, :-WINDOW]) / WINDOW
torch.testing.assert_close(mean, want.float(), atol=1e-3, rtol=1e-5)
