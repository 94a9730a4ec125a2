"""A convolution whose divisors are constants."""

import torch
import triton
import triton.language as tl


@triton.jit
def conv(x, w, out, C, H, W: tl.constexpr, R: tl.constexpr, S: tl.constexpr, BLOCK: tl.constexpr):
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for step in range(0, C * R * S):
        c = step // (R * S)
        r = step // S % R
        s = step % S
        place = pixel + r * W + s
        row = place // W
        column = place % W
        inside = (row < H) & (column < W)
        acc += tl.load(x + (c * H + row) * W + column, mask=inside, other=0.0) * tl.load(w + step)
    tl.store(out + pixel, acc)


x = torch.randn(64, 512, 512, device="cuda")
w = torch.randn(64, 3, 3, device="cuda")
out = torch.empty(512, 512, device="cuda")
conv[(512 * 512 // 256,)](x, w, out, 64, 512, 512, 3, 3, 256)
flat = torch.nn.functional.pad(x.flatten(1), (0, 2 * 512 + 2))
parts = (w[:, r, s] @ flat[:, r * 512 + s :][:, : 512 * 512] for r in range(3) for s in range(3))
torch.testing.assert_close(out.flatten(), sum(parts), rtol=1e-3, atol=1e-3)
