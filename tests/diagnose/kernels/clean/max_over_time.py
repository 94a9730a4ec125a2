"""Largest value of each channel over time, [batch, time, channels] to [batch, channels], and when it came.

The reduced axis is not the contiguous one: a tile spans 64 channels (whole 128-byte lines) and 64 times, keeps a
running maximum per lane, and reduces across lanes once at the end.
"""

import torch
import triton
import triton.language as tl

B = 64
TIME = 4096
C = 512


@triton.jit
def max_over_time(x_ptr, y_ptr, when_ptr, TIME, C: tl.constexpr, BLOCK_T: tl.constexpr, BLOCK_C: tl.constexpr):
    batch = tl.program_id(1).to(tl.int64)
    rc = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    rt = tl.arange(0, BLOCK_T)
    x_ptrs = x_ptr + batch * TIME * C + rt[:, None] * C + rc[None, :]
    best = tl.full((BLOCK_T, BLOCK_C), -float("inf"), tl.float32)
    when = tl.zeros((BLOCK_T, BLOCK_C), tl.int32)
    for start in tl.range(0, TIME, BLOCK_T, num_stages=3):
        x = tl.load(x_ptrs + start * C).to(tl.float32)
        when = tl.where(x > best, start + rt[:, None], when)
        best = tl.maximum(best, x)
    top = tl.max(best, axis=0)
    tl.store(y_ptr + batch * C + rc, top.to(y_ptr.dtype.element_ty))
    first = tl.min(tl.where(best == top[None, :], when, TIME), axis=0)
    tl.store(when_ptr + batch * C + rc, first)


torch.manual_seed(0)
x = torch.randn(B, TIME, C, device="cuda", dtype=torch.bfloat16)
y = torch.empty(B, C, device="cuda", dtype=torch.bfloat16)
when = torch.empty(B, C, device="cuda", dtype=torch.int32)

max_over_time[(C // 64, B)](x, y, when, TIME, C=C, BLOCK_T=64, BLOCK_C=64, num_warps=4)

top = x.float().amax(1)
t = torch.arange(TIME, device="cuda")[None, :, None]
torch.testing.assert_close(y.float(), top)
torch.testing.assert_close(when.long(), torch.where(x.float() == top[:, None], t, TIME).amin(1))
