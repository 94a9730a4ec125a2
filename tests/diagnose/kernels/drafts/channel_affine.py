"""Per-channel scale and shift with SiLU on the (batch, channel, time) activations of a speech encoder."""

import torch
import triton
import triton.language as tl


@triton.jit
def silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def affine_silu(x_ptr, scale_ptr, shift_ptr, y_ptr, numel, C, LEN, BLOCK: tl.constexpr):
    off = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = off < numel
    c = (off // LEN) % C  # planted: loop-division
    x = tl.load(x_ptr + off, mask=mask).to(tl.float32)
    scale = tl.load(scale_ptr + c, mask=mask).to(tl.float32)
    shift = tl.load(shift_ptr + c, mask=mask).to(tl.float32)
    y = silu(x * scale + shift)
    tl.store(y_ptr + off, y.to(y_ptr.dtype.element_ty), mask=mask)


torch.manual_seed(0)
N, C, T = 16, 1280, 3000
x = torch.randn(N, C, T, device="cuda", dtype=torch.float16)
scale = torch.randn(C, device="cuda", dtype=torch.float16)
shift = torch.randn(C, device="cuda", dtype=torch.float16)
y = torch.empty_like(x)
affine_silu[(triton.cdiv(x.numel(), 1024),)](x, scale, shift, y, x.numel(), C, T, BLOCK=1024, num_warps=4)
ref = torch.nn.functional.silu(x.float() * scale.float()[None, :, None] + shift.float()[None, :, None])
torch.testing.assert_close(y.float(), ref, rtol=1e-2, atol=1e-2)
