"""One step of the compressible Euler equations in three dimensions: Rusanov fluxes between cells, walls not advanced.

Fault: the launch holds the kernel to 32 registers a thread so that an SM takes all the warps it can. Seven cells of five
variables, for two cells a thread, do not fit in 32: they go to local memory and come back.
Fix: no limit; fewer warps, each with many loads under way, are enough.
"""

import torch
import triton
import triton.language as tl

SIDE = 256
GAMMA = 1.4
STEP = 0.1


@triton.jit
def load_cell(u_ptr, at, mask, CELLS: tl.constexpr, GAMMA: tl.constexpr):
    rho = tl.load(u_ptr + at, mask=mask, other=1.0)  # planted: register-spills
    mx = tl.load(u_ptr + CELLS + at, mask=mask, other=0.0)
    my = tl.load(u_ptr + 2 * CELLS + at, mask=mask, other=0.0)
    mz = tl.load(u_ptr + 3 * CELLS + at, mask=mask, other=0.0)
    energy = tl.load(u_ptr + 4 * CELLS + at, mask=mask, other=1.0)
    inverse = 1.0 / rho
    pressure = (GAMMA - 1.0) * (energy - 0.5 * (mx * mx + my * my + mz * mz) * inverse)
    return rho, mx, my, mz, energy, inverse, pressure, tl.sqrt(GAMMA * pressure * inverse)


@triton.jit
def flux(l_rho, l_m, l_s, l_t, l_e, l_i, l_p, l_c, r_rho, r_m, r_s, r_t, r_e, r_i, r_p, r_c):
    # m is the momentum along the flux, s and t are the other two
    l_v = l_m * l_i
    r_v = r_m * r_i
    speed = tl.maximum(tl.abs(l_v) + l_c, tl.abs(r_v) + r_c)
    f_rho = 0.5 * (l_m + r_m - speed * (r_rho - l_rho))
    f_m = 0.5 * (l_m * l_v + l_p + r_m * r_v + r_p - speed * (r_m - l_m))
    f_s = 0.5 * (l_s * l_v + r_s * r_v - speed * (r_s - l_s))
    f_t = 0.5 * (l_t * l_v + r_t * r_v - speed * (r_t - l_t))
    f_e = 0.5 * ((l_e + l_p) * l_v + (r_e + r_p) * r_v - speed * (r_e - l_e))
    return f_rho, f_m, f_s, f_t, f_e


@triton.jit
def euler_flux(u_ptr, new_ptr, STEP: tl.constexpr, GAMMA: tl.constexpr, SIDE: tl.constexpr, ROWS: tl.constexpr):
    CELLS: tl.constexpr = SIDE * SIDE * SIDE
    k = tl.arange(0, SIDE)[None, :]
    j = tl.program_id(0) * ROWS + 1 + tl.arange(0, ROWS)[:, None]
    i = tl.program_id(1) + 1
    inner = (k > 0) & (k < SIDE - 1)
    at = (i * SIDE + j) * SIDE + k
    rho, mx, my, mz, e, inv, p, c = load_cell(u_ptr, at, inner, CELLS, GAMMA)
    rho0, mx0, my0, mz0, e0, inv0, p0, c0 = load_cell(u_ptr, at - 1, inner, CELLS, GAMMA)
    rho1, mx1, my1, mz1, e1, inv1, p1, c1 = load_cell(u_ptr, at + 1, inner, CELLS, GAMMA)
    rho2, mx2, my2, mz2, e2, inv2, p2, c2 = load_cell(u_ptr, at - SIDE, inner, CELLS, GAMMA)
    rho3, mx3, my3, mz3, e3, inv3, p3, c3 = load_cell(u_ptr, at + SIDE, inner, CELLS, GAMMA)
    rho4, mx4, my4, mz4, e4, inv4, p4, c4 = load_cell(u_ptr, at - SIDE * SIDE, inner, CELLS, GAMMA)
    rho5, mx5, my5, mz5, e5, inv5, p5, c5 = load_cell(u_ptr, at + SIDE * SIDE, inner, CELLS, GAMMA)

    a0, a1, a2, a3, a4 = flux(rho0, mx0, my0, mz0, e0, inv0, p0, c0, rho, mx, my, mz, e, inv, p, c)
    b0, b1, b2, b3, b4 = flux(rho, mx, my, mz, e, inv, p, c, rho1, mx1, my1, mz1, e1, inv1, p1, c1)
    f0, f2, f1, f3, f4 = flux(rho2, my2, mx2, mz2, e2, inv2, p2, c2, rho, my, mx, mz, e, inv, p, c)
    g0, g2, g1, g3, g4 = flux(rho, my, mx, mz, e, inv, p, c, rho3, my3, mx3, mz3, e3, inv3, p3, c3)
    q0, q3, q1, q2, q4 = flux(rho4, mz4, mx4, my4, e4, inv4, p4, c4, rho, mz, mx, my, e, inv, p, c)
    r0, r3, r1, r2, r4 = flux(rho, mz, mx, my, e, inv, p, c, rho5, mz5, mx5, my5, e5, inv5, p5, c5)
    tl.store(new_ptr + at, rho - STEP * (b0 - a0 + g0 - f0 + r0 - q0), mask=inner)
    tl.store(new_ptr + CELLS + at, mx - STEP * (b1 - a1 + g1 - f1 + r1 - q1), mask=inner)
    tl.store(new_ptr + 2 * CELLS + at, my - STEP * (b2 - a2 + g2 - f2 + r2 - q2), mask=inner)
    tl.store(new_ptr + 3 * CELLS + at, mz - STEP * (b3 - a3 + g3 - f3 + r3 - q3), mask=inner)
    tl.store(new_ptr + 4 * CELLS + at, e - STEP * (b4 - a4 + g4 - f4 + r4 - q4), mask=inner)


torch.manual_seed(0)
u = torch.rand(5, SIDE, SIDE, SIDE, device="cuda")
u[0] += 1.0
u[4] += 3.0
new = u.clone()

euler_flux[((SIDE - 2) // 2, SIDE - 2)](
    u,
    new,
    STEP=STEP,
    GAMMA=GAMMA,
    SIDE=SIDE,
    ROWS=2,
    num_warps=8,
    maxnreg=32,
)


def rusanov(left, right, axis):
    def split(v):
        velocity = v[axis] / v[0]
        pressure = (GAMMA - 1.0) * (v[4] - 0.5 * (v[1] ** 2 + v[2] ** 2 + v[3] ** 2) / v[0])
        flux = v * velocity
        flux[axis] += pressure
        flux[4] += pressure * velocity
        return flux, velocity.abs() + (GAMMA * pressure / v[0]).sqrt()

    flux_l, speed_l = split(left)
    flux_r, speed_r = split(right)
    return 0.5 * (flux_l + flux_r - torch.maximum(speed_l, speed_r) * (right - left))


want = u.clone()
for axis, dim in ((1, 3), (2, 2), (3, 1)):
    inner = u
    for other in {1, 2, 3} - {dim}:
        inner = inner.narrow(other, 1, SIDE - 2)
    between = rusanov(inner.narrow(dim, 0, SIDE - 1), inner.narrow(dim, 1, SIDE - 1), axis)
    want[:, 1:-1, 1:-1, 1:-1] -= STEP * between.diff(dim=dim)
torch.testing.assert_close(new, want, atol=1e-4, rtol=1e-4)
