"""Dropout forward with a counter-based generator, so that the backward pass can draw the mask anew."""

import torch
import triton
import triton.language as tl


@triton.jit
def dropout_kernel(x_ptr, y_ptr, n, p, seed, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK * 4
    for i in tl.static_range(4):
        off = start + i * BLOCK + tl.arange(0, BLOCK)
        r = tl.rand(seed, off)  # planted: random-numbers
        x = tl.load(x_ptr + off, mask=off < n, other=0.0).to(tl.float32)
        y = tl.where(r > p, x / (1 - p), 0.0)
        tl.store(y_ptr + off, y.to(y_ptr.dtype.element_ty), mask=off < n)


torch.manual_seed(0)
TOKENS, HIDDEN, P = 16384, 4096, 0.1
x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
y = torch.empty_like(x)
n = x.numel()
dropout_kernel[(triton.cdiv(n, 512 * 4),)](x, y, n, P, 1234, BLOCK=512, num_warps=4)
kept = y != 0
torch.testing.assert_close(y.float(), torch.where(kept, x.float() / (1 - P), 0.0), rtol=1e-2, atol=1e-3)
torch.testing.assert_close((kept.sum() / (x != 0).sum()).item(), 1 - P, rtol=0, atol=2e-3)
