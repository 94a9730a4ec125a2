"""Power spectrum of windowed frames of audio: 512 samples a frame, every 128 samples, 256 bins, as a product.

Fault: the cosines and sines of the transform are computed in the loop, by each program for itself: 1024 programs that
differ in frames alone compute the same ones, 268 million in all, each 20 instructions and more.
Fix: compute the windowed cosines and sines once, 512 x 256 in fp16, and load them.
"""

import math

import torch
import triton
import triton.language as tl

SIGNALS = 64
FRAMES = 1024
HOP = 128
SIZE = 512
BINS = 256


@triton.jit
def stft_power(
    x_ptr,
    window_ptr,
    out_ptr,
    length,
    FRAMES: tl.constexpr,
    HOP: tl.constexpr,
    SIZE: tl.constexpr,
    BINS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    signal = tl.program_id(2)
    frame = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    bins = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    re = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    im = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, SIZE, BLOCK_K):
        n = start + tl.arange(0, BLOCK_K)
        x = tl.load(x_ptr + signal * length + frame[:, None] * HOP + n[None, :])
        window = tl.load(window_ptr + n)
        angle = ((n[:, None] * bins[None, :]) & (SIZE - 1)).to(tl.float32) * (6.283185307179586 / SIZE)
        c = (window[:, None] * tl.cos(angle)).to(tl.float16)  # planted: table-recomputed
        s = (window[:, None] * tl.sin(angle)).to(tl.float16)
        re = tl.dot(x, c, re)
        im = tl.dot(x, s, im)
    tl.store(out_ptr + (signal * FRAMES + frame)[:, None] * BINS + bins[None, :], re * re + im * im)


torch.manual_seed(0)
length = FRAMES * HOP + SIZE
x = torch.randn(SIGNALS, length, device="cuda", dtype=torch.float16)
window = torch.hann_window(SIZE, device="cuda")
out = torch.empty(SIGNALS, FRAMES, BINS, device="cuda")

stft_power[(BINS // 64, FRAMES // 64, SIGNALS)](
    x,
    window,
    out,
    length,
    FRAMES=FRAMES,
    HOP=HOP,
    SIZE=SIZE,
    BINS=BINS,
    BLOCK_M=64,
    BLOCK_N=64,
    BLOCK_K=64,
    num_warps=4,
    num_stages=3,
)

n = torch.arange(SIZE, device="cuda", dtype=torch.float64)
angle = n[:, None] * torch.arange(BINS, device="cuda", dtype=torch.float64) * (2 * math.pi / SIZE)
for signal in range(0, SIGNALS, 16):
    frames = x[signal].unfold(0, SIZE, HOP)[:FRAMES].float()
    re = frames @ (window[:, None] * torch.cos(angle)).float()
    im = frames @ (window[:, None] * torch.sin(angle)).float()
    torch.testing.assert_close(out[signal], re * re + im * im, rtol=2e-2, atol=1.0)
