"""Transposed convolution of a vocoder: 16 taps, stride 8, 256 channels in and 128 out, channels last."""

import torch
import triton
import triton.language as tl

BATCH = 8
TIME = 2048
C_IN = 256
C_OUT = 128
STRIDE = 8


@triton.jit
def vocoder_upsample(
    x_ptr,
    w_ptr,
    y_ptr,
    time,
    C_IN: tl.constexpr,
    C_OUT: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    # the samples of one program are STRIDE apart, so the same two taps reach all of them
    phase = tl.program_id(0) % STRIDE
    step = tl.program_id(0) // STRIDE * BLOCK_T + tl.arange(0, BLOCK_T)
    t = step * STRIDE + phase
    batch = tl.program_id(1)
    co = tl.arange(0, C_OUT)
    acc = tl.zeros((BLOCK_T, C_OUT), tl.float32)
    for part in range(0, 2 * C_IN, BLOCK_C):
        tap = (phase + STRIDE // 2) % STRIDE + part // C_IN * STRIDE
        ci = tl.multiple_of(part % C_IN, BLOCK_C) + tl.arange(0, BLOCK_C)
        source = step + (phase + STRIDE // 2) // STRIDE - part // C_IN
        hit = (source >= 0) & (source < time)
        x = tl.load(x_ptr + (batch * time + source[:, None]) * C_IN + ci[None, :], mask=hit[:, None], other=0.0)
        w = tl.load(w_ptr + (tap * C_IN + ci[:, None]) * C_OUT + co[None, :])
        acc = tl.dot(x, w, acc)
    tl.store(y_ptr + (batch * time * STRIDE + t[:, None]) * C_OUT + co[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
x = torch.randn(BATCH, TIME, C_IN, device="cuda", dtype=torch.bfloat16)
w = torch.randn(2 * STRIDE, C_IN, C_OUT, device="cuda", dtype=torch.bfloat16) * 0.05
y = torch.empty(BATCH, TIME * STRIDE, C_OUT, device="cuda", dtype=torch.bfloat16)

vocoder_upsample[(TIME // 128 * STRIDE, BATCH)](
    x, w, y, TIME, C_IN=C_IN, C_OUT=C_OUT, STRIDE=STRIDE, BLOCK_T=128, BLOCK_C=64, num_warps=8, num_stages=3
)

full = torch.zeros(BATCH, (TIME + 1) * STRIDE, C_OUT, device="cuda")
for tap in range(2 * STRIDE):
    full[:, tap : tap + TIME * STRIDE : STRIDE] += x.float() @ w[tap].float()
torch.testing.assert_close(y.float(), full[:, STRIDE // 2 : -STRIDE // 2], rtol=2e-2, atol=3e-2)
