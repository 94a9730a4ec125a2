"""Roll an image by half a window and cut it into 8 x 8 windows, channels last, as SwinIR does."""

import torch
import triton
import triton.language as tl

B = 32
H = 128
W = 128
C = 180
WINDOW = 8
SHIFT = 4


@triton.jit
def window_partition(
    x_ptr,
    y_ptr,
    H: tl.constexpr,
    W: tl.constexpr,
    C: tl.constexpr,
    WINDOW: tl.constexpr,
    SHIFT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.arange(0, triton.next_power_of_2(C))[None, :]
    dx = pixel % WINDOW
    dy = pixel // WINDOW % WINDOW
    window = pixel // (WINDOW * WINDOW)
    across: tl.constexpr = W // WINDOW
    col = (window % across * WINDOW + dx + SHIFT) % W
    down: tl.constexpr = H // WINDOW
    row = (window // across % down * WINDOW + dy + SHIFT) % H
    image = window // (across * down)
    values = tl.load(x_ptr + ((image * H + row) * W + col)[:, None] * C + channel, mask=channel < C)
    tl.store(y_ptr + pixel[:, None] * C + channel, values, mask=channel < C)


torch.manual_seed(0)
x = torch.randn(B, H, W, C, device="cuda", dtype=torch.bfloat16)
y = torch.empty(B * (H // WINDOW) * (W // WINDOW), WINDOW, WINDOW, C, device="cuda", dtype=torch.bfloat16)

window_partition[(x.numel() // C // 32,)](x, y, H=H, W=W, C=C, WINDOW=WINDOW, SHIFT=SHIFT, BLOCK=32, num_warps=4)

rolled = torch.roll(x, (-SHIFT, -SHIFT), (1, 2)).view(B, H // WINDOW, WINDOW, W // WINDOW, WINDOW, C)
torch.testing.assert_close(y.float(), rolled.permute(0, 1, 3, 2, 4, 5).reshape(y.shape).float())
