"""Morton codes of points for building a tree of boxes: ten bits each of x, y and z in [0, 1), interleaved."""

import torch
import triton
import triton.language as tl

POINTS = 33554432


@triton.jit
def spread(v):
    # abcdefghij to a00b00c00d00e00f00g00h00i00j
    v = (v | (v << 16)) & 0x030000FF
    v = (v | (v << 8)) & 0x0300F00F
    v = (v | (v << 4)) & 0x030C30C3
    return (v | (v << 2)) & 0x09249249


@triton.jit
def morton_encode(x_ptr, y_ptr, z_ptr, code_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = (tl.load(x_ptr + i) * 1024.0).to(tl.int32)
    y = (tl.load(y_ptr + i) * 1024.0).to(tl.int32)
    z = (tl.load(z_ptr + i) * 1024.0).to(tl.int32)
    tl.store(code_ptr + i, spread(x) | (spread(y) << 1) | (spread(z) << 2))


torch.manual_seed(0)
x = torch.rand(POINTS, device="cuda")
y = torch.rand(POINTS, device="cuda")
z = torch.rand(POINTS, device="cuda")
code = torch.empty(POINTS, device="cuda", dtype=torch.int32)

morton_encode[(POINTS // 1024,)](x, y, z, code, BLOCK=1024, num_warps=4)

want = torch.zeros_like(code)
for bit in range(10):
    for axis, v in enumerate((x, y, z)):
        want |= (((v * 1024).int() >> bit) & 1) << (3 * bit + axis)
torch.testing.assert_close(code, want)
