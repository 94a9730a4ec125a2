"""Gravitational acceleration of 32768 bodies, every pair, softened.

Fault: the softening length comes in a float64 tensor, and adding its square promotes everything after it to float64:
the inverse square root becomes a software routine of some 25 fp64 instructions and the products run at half rate with
conversions in between. 1.1 G pairs take about 0.7 ms in fp32 (some 15 instructions on 128 lanes a cycle and one inverse
square root on 16); in fp64 at least three times that.
Fix: convert the loaded softening length to fp32.
"""

import torch
import triton
import triton.language as tl

BODIES = 32768


@triton.jit
def gravity(
    x_ptr,
    y_ptr,
    z_ptr,
    mass_ptr,
    soft_ptr,
    ax_ptr,
    ay_ptr,
    az_ptr,
    BODIES,
    BLOCK_I: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    i = tl.program_id(0) * BLOCK_I + tl.arange(0, BLOCK_I)
    x = tl.load(x_ptr + i)[:, None]
    y = tl.load(y_ptr + i)[:, None]
    z = tl.load(z_ptr + i)[:, None]
    soft = tl.load(soft_ptr)
    ax = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    ay = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    az = tl.zeros((BLOCK_I, BLOCK_J), tl.float32)
    for start in range(0, BODIES, BLOCK_J):
        j = start + tl.arange(0, BLOCK_J)
        dx = tl.load(x_ptr + j)[None, :] - x
        dy = tl.load(y_ptr + j)[None, :] - y
        dz = tl.load(z_ptr + j)[None, :] - z
        mass = tl.load(mass_ptr + j)[None, :]
        inverse = tl.rsqrt(dx * dx + dy * dy + dz * dz + soft * soft)  # planted: float64
        pull = (mass * inverse * inverse * inverse).to(tl.float32)
        ax += pull * dx
        ay += pull * dy
        az += pull * dz
    tl.store(ax_ptr + i, tl.sum(ax, axis=1))
    tl.store(ay_ptr + i, tl.sum(ay, axis=1))
    tl.store(az_ptr + i, tl.sum(az, axis=1))


torch.manual_seed(0)
x, y, z = (torch.randn(BODIES, device="cuda") for _ in range(3))
mass = torch.rand(BODIES, device="cuda") / BODIES
soft = torch.tensor(0.05, device="cuda", dtype=torch.float64)
ax, ay, az = (torch.empty(BODIES, device="cuda") for _ in range(3))

gravity[(BODIES // 64,)](x, y, z, mass, soft, ax, ay, az, BODIES, BLOCK_I=64, BLOCK_J=32, num_warps=4)

some = torch.arange(0, BODIES, 16, device="cuda")
dx, dy, dz = (p[None, :] - p[some, None] for p in (x, y, z))
pull = mass * torch.rsqrt(dx * dx + dy * dy + dz * dz + 0.05**2) ** 3
for got, d in ((ax, dx), (ay, dy), (az, dz)):
    torch.testing.assert_close(got[some], (pull * d).sum(1), rtol=1e-3, atol=1e-4)
