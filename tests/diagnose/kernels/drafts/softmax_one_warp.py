"""A softmax of long rows, on one warp."""

import torch
import triton
import triton.language as tl


@triton.jit
def softmax_kernel(out_ptr, in_ptr, in_stride, out_stride, n_cols, BLOCK_SIZE: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_cols
    x = tl.load(in_ptr + row * in_stride + offsets, mask=mask, other=-float("inf"))  # planted: too-few-warps
    x = x.to(tl.float32)
    z = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_ptr + row * out_stride + offsets, z / tl.sum(z, axis=0), mask=mask)


x = torch.randn(4096, 8192, device="cuda")
y = torch.empty_like(x)
softmax_kernel[(4096,)](y, x, x.stride(0), y.stride(0), 8192, BLOCK_SIZE=8192, num_warps=1)
assert torch.allclose(y, torch.softmax(x, 1))
