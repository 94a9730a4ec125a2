"""Dot product of two long vectors with the rounding errors of products and sums carried along (Ogita, Rump, Oishi).

Ten operations an element instead of one, all hidden behind the loads: eight bytes take as long as sixty.
"""

import torch
import triton
import triton.language as tl

ELEMENTS = 138412032
PROGRAMS = 1056


@triton.jit
def compensated_dot(x_ptr, y_ptr, sum_ptr, error_ptr, PART: tl.constexpr, BLOCK: tl.constexpr):
    first = tl.program_id(0) * PART
    total = tl.zeros((BLOCK,), tl.float32)
    error = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, PART, BLOCK):
        i = first + start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i)
        y = tl.load(y_ptr + i)
        product = x * y
        after = total + product
        part = after - total
        error += tl.fma(x, y, -product) + ((total - (after - part)) + (product - part))
        total = after
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(sum_ptr + at, total)
    tl.store(error_ptr + at, error)


torch.manual_seed(0)
x = torch.randn(ELEMENTS, device="cuda")
y = torch.randn(ELEMENTS, device="cuda")
total = torch.empty(PROGRAMS, 1024, device="cuda")
error = torch.empty(PROGRAMS, 1024, device="cuda")

# no contraction of x * y and total + product into one operation, which would lose the rounding error of the first
compensated_dot[(PROGRAMS,)](
    x, y, total, error, PART=ELEMENTS // PROGRAMS, BLOCK=1024, num_warps=8, enable_fp_fusion=False
)

dot = total.double().sum() + error.double().sum()
torch.testing.assert_close(dot, (x.double() * y.double()).sum(), atol=1e-3, rtol=1e-9)
