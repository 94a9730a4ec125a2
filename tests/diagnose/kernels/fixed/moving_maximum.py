"""The largest of the last WINDOW samples of each channel, as an envelope or a peak meter needs it."""

import torch
import triton
import triton.language as tl

CHANNELS = 1024
SAMPLES = 32768
WINDOW = 128


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def moving_maximum(x_ptr, y_ptr, SAMPLES: tl.constexpr, WINDOW: tl.constexpr, CHUNKS: tl.constexpr):
    channel = tl.program_id(1)
    chunk = tl.program_id(0) * CHUNKS + tl.arange(0, CHUNKS)
    t = chunk[:, None] * WINDOW + tl.arange(0, WINDOW)[None, :]
    x_ptr += channel * (SAMPLES + WINDOW - 1)
    a, b = tl.load(x_ptr + t), tl.load(x_ptr + t + WINDOW - 1)
    largest = tl.maximum(tl.associative_scan(a, 1, larger, reverse=True), tl.associative_scan(b, 1, larger))
    tl.store(y_ptr + channel * SAMPLES + t, largest)


torch.manual_seed(0)
x = torch.randn(CHANNELS, SAMPLES + WINDOW - 1, device="cuda")
y = torch.empty(CHANNELS, SAMPLES, device="cuda")
moving_maximum[(SAMPLES // (8 * WINDOW), CHANNELS)](x, y, SAMPLES, WINDOW, 8, num_warps=4)
torch.testing.assert_close(y, torch.nn.functional.max_pool1d(x, WINDOW, 1))
