"""The first kernel of all, with a small block."""

import torch
import triton
import triton.language as tl


@triton.jit
def add_kernel(x_ptr, y_ptr, output_ptr, n_elements, BLOCK_SIZE: tl.constexpr):
    pid = tl.program_id(axis=0)
    block_start = pid * BLOCK_SIZE
    offsets = block_start + tl.arange(0, BLOCK_SIZE)
    mask = offsets < n_elements
    x = tl.load(x_ptr + offsets, mask=mask)  # planted: few-bytes-in-flight
    y = tl.load(y_ptr + offsets, mask=mask)
    tl.store(output_ptr + offsets, x + y, mask=mask)


x = torch.rand(98432 * 640, device="cuda", dtype=torch.bfloat16)
y = torch.rand(98432 * 640, device="cuda", dtype=torch.bfloat16)
output = torch.empty_like(x)
grid = lambda meta: (triton.cdiv(x.numel(), meta["BLOCK_SIZE"]),)  # noqa: E731
add_kernel[grid](x, y, output, x.numel(), BLOCK_SIZE=128)
assert torch.equal(output, x + y)
