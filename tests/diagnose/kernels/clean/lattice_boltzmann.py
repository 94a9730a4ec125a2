"""A step of a lattice Boltzmann fluid in the plane (nine speeds, periodic edges, one plane of values for each speed).

Each of the nine values of a cell is read from its neighbour and written once, in order: 604 MB, bound by memory.
"""

import torch
import triton
import triton.language as tl

H = 2048
W = 4096


@triton.jit
def lattice_step(f_ptr, out_ptr, omega, H, W: tl.constexpr, BLOCK: tl.constexpr):
    x = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    y = tl.program_id(1)
    plane = H * W
    density = tl.zeros((BLOCK,), tl.float32)
    ux = tl.zeros((BLOCK,), tl.float32)
    uy = tl.zeros((BLOCK,), tl.float32)
    f = ()
    for k in tl.static_range(9):
        from_x = (x - (k % 3 - 1) + W) % W
        from_y = (y - (k // 3 - 1) + H) % H
        value = tl.load(f_ptr + k * plane + from_y * W + from_x)
        density += value
        ux += value * (k % 3 - 1)
        uy += value * (k // 3 - 1)
        f = f + (value,)  # noqa: RUF005
    ux /= density
    uy /= density
    for k in tl.static_range(9):
        along = 3.0 * (ux * (k % 3 - 1) + uy * (k // 3 - 1))
        # 4/9 at rest, 1/9 along an axis, 1/36 along a diagonal
        share = (4.0 if k % 3 == 1 else 1.0) * (4.0 if k // 3 == 1 else 1.0) / 36.0
        balance = share * density * (1.0 + along + 0.5 * along * along - 1.5 * (ux * ux + uy * uy))
        tl.store(out_ptr + k * plane + y * W + x, f[k] + omega * (balance - f[k]))


torch.manual_seed(0)
f = torch.rand(9, H, W, device="cuda") * 0.1 + 0.5
out = torch.empty_like(f)

lattice_step[(W // 512, H)](f, out, 1.2, H, W=W, BLOCK=512, num_warps=4)

moved = torch.stack([f[k].roll((k // 3 - 1, k % 3 - 1), (0, 1)) for k in range(9)])
density = moved.sum(0)
ux = sum(moved[k] * (k % 3 - 1) for k in range(9)) / density
uy = sum(moved[k] * (k // 3 - 1) for k in range(9)) / density
for k in range(9):
    along = 3 * (ux * (k % 3 - 1) + uy * (k // 3 - 1))
    share = (4 if k % 3 == 1 else 1) * (4 if k // 3 == 1 else 1) / 36
    balance = share * density * (1 + along + along**2 / 2 - 1.5 * (ux**2 + uy**2))
    torch.testing.assert_close(out[k], moved[k] + 1.2 * (balance - moved[k]), rtol=1e-4, atol=1e-4)
