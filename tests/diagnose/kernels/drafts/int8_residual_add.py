"""Sum of two int8 activations with a scale each, rounded and clamped back to int8.

Fault: the strides are named in do_not_specialize, so the compiler knows neither that columns follow one another nor
that rows begin at a multiple of 16: every byte is a load or a store of its own with its own address, a warp moves 32
bytes with an instruction, and 805 MB take some 500 us instead of 270.
Fix: let Triton specialise the strides; one of them is 1, and the loads and stores become wide.
"""

import torch
import triton
import triton.language as tl

ROWS = 65536
COLUMNS = 4096


@triton.jit(do_not_specialize=["stride_row", "stride_column"])
def int8_residual_add(
    a_ptr, b_ptr, out_ptr, scale_a, scale_b, stride_row, stride_column, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):
    row = tl.program_id(1) * BLOCK_R + tl.arange(0, BLOCK_R)
    column = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    at = row[:, None] * stride_row + column[None, :] * stride_column
    a = tl.load(a_ptr + at).to(tl.float32)  # planted: narrow-access
    b = tl.load(b_ptr + at).to(tl.float32)
    total = tl.floor(a * scale_a + b * scale_b + 0.5)
    tl.store(out_ptr + at, tl.minimum(tl.maximum(total, -127.0), 127.0).to(tl.int8))


torch.manual_seed(0)
a = torch.randint(-127, 128, (ROWS, COLUMNS), device="cuda", dtype=torch.int8)
b = torch.randint(-127, 128, (ROWS, COLUMNS), device="cuda", dtype=torch.int8)
out = torch.empty_like(a)

int8_residual_add[(COLUMNS // 1024, ROWS // 4)](a, b, out, 0.75, 0.5, *a.stride(), BLOCK_R=4, BLOCK_C=1024, num_warps=4)

for part in range(0, ROWS, 8192):
    rows = slice(part, part + 8192)
    want = torch.floor(a[rows].float() * 0.75 + b[rows].float() * 0.5 + 0.5).clamp(-127, 127)
    torch.testing.assert_close(out[rows], want.to(torch.int8))
