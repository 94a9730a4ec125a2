"""One step of the compressible Euler equations in two dimensions: Rusanov fluxes between cells, walls not advanced."""

import torch
import triton
import triton.language as tl

HEIGHT = 4096
WIDTH = 4096
GAMMA = 1.4
STEP = 0.1


@triton.jit
def load_cell(u_ptr, at, mask, SIZE: tl.constexpr, GAMMA: tl.constexpr):
    rho = tl.load(u_ptr + at, mask=mask, other=1.0)
    mx = tl.load(u_ptr + SIZE + at, mask=mask, other=0.0)
    my = tl.load(u_ptr + 2 * SIZE + at, mask=mask, other=0.0)
    energy = tl.load(u_ptr + 3 * SIZE + at, mask=mask, other=1.0)
    inverse = 1.0 / rho
    vx = mx * inverse
    vy = my * inverse
    pressure = (GAMMA - 1.0) * (energy - 0.5 * (mx * vx + my * vy))
    sound = tl.sqrt(GAMMA * pressure * inverse)
    return rho, mx, my, energy, vx, vy, pressure, sound


@triton.jit
def flux_x(l_rho, l_mx, l_my, l_e, l_vx, l_p, l_c, r_rho, r_mx, r_my, r_e, r_vx, r_p, r_c):
    speed = tl.maximum(tl.abs(l_vx) + l_c, tl.abs(r_vx) + r_c)
    f_rho = 0.5 * (l_mx + r_mx - speed * (r_rho - l_rho))
    f_mx = 0.5 * (l_mx * l_vx + l_p + r_mx * r_vx + r_p - speed * (r_mx - l_mx))
    f_my = 0.5 * (l_my * l_vx + r_my * r_vx - speed * (r_my - l_my))
    f_e = 0.5 * ((l_e + l_p) * l_vx + (r_e + r_p) * r_vx - speed * (r_e - l_e))
    return f_rho, f_mx, f_my, f_e


@triton.jit
def euler_flux(
    u_ptr,
    new_ptr,
    STEP: tl.constexpr,
    GAMMA: tl.constexpr,
    HEIGHT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    SIZE: tl.constexpr = HEIGHT * WIDTH
    j = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    i = tl.program_id(1)
    inner = (j > 0) & (j < WIDTH - 1) & (i > 0) & (i < HEIGHT - 1)
    at = i * WIDTH + j
    c_rho, c_mx, c_my, c_e, c_vx, c_vy, c_p, c_c = load_cell(u_ptr, at, inner, SIZE, GAMMA)
    w_rho, w_mx, w_my, w_e, w_vx, _, w_p, w_c = load_cell(u_ptr, at - 1, inner, SIZE, GAMMA)
    e_rho, e_mx, e_my, e_e, e_vx, _, e_p, e_c = load_cell(u_ptr, at + 1, inner, SIZE, GAMMA)
    n_rho, n_mx, n_my, n_e, _, n_vy, n_p, n_c = load_cell(u_ptr, at - WIDTH, inner, SIZE, GAMMA)
    s_rho, s_mx, s_my, s_e, _, s_vy, s_p, s_c = load_cell(u_ptr, at + WIDTH, inner, SIZE, GAMMA)

    # the flux along y is the one along x with the components of the momentum exchanged
    a0, a1, a2, a3 = flux_x(w_rho, w_mx, w_my, w_e, w_vx, w_p, w_c, c_rho, c_mx, c_my, c_e, c_vx, c_p, c_c)
    b0, b1, b2, b3 = flux_x(c_rho, c_mx, c_my, c_e, c_vx, c_p, c_c, e_rho, e_mx, e_my, e_e, e_vx, e_p, e_c)
    d0, d2, d1, d3 = flux_x(n_rho, n_my, n_mx, n_e, n_vy, n_p, n_c, c_rho, c_my, c_mx, c_e, c_vy, c_p, c_c)
    f0, f2, f1, f3 = flux_x(c_rho, c_my, c_mx, c_e, c_vy, c_p, c_c, s_rho, s_my, s_mx, s_e, s_vy, s_p, s_c)
    tl.store(new_ptr + at, c_rho - STEP * (b0 - a0 + f0 - d0), mask=inner)
    tl.store(new_ptr + SIZE + at, c_mx - STEP * (b1 - a1 + f1 - d1), mask=inner)
    tl.store(new_ptr + 2 * SIZE + at, c_my - STEP * (b2 - a2 + f2 - d2), mask=inner)
    tl.store(new_ptr + 3 * SIZE + at, c_e - STEP * (b3 - a3 + f3 - d3), mask=inner)


torch.manual_seed(0)
u = torch.rand(4, HEIGHT, WIDTH, device="cuda")
u[0] += 1.0
u[3] += 3.0
new = u.clone()

euler_flux[(WIDTH // 1024, HEIGHT)](
    u,
    new,
    STEP=STEP,
    GAMMA=GAMMA,
    HEIGHT=HEIGHT,
    WIDTH=WIDTH,
    BLOCK=1024,
    num_warps=8,
)


def rusanov(left, right, axis):
    def split(v):
        velocity = v[axis] / v[0]
        pressure = (GAMMA - 1.0) * (v[3] - 0.5 * (v[1] ** 2 + v[2] ** 2) / v[0])
        flux = v * velocity
        flux[axis] += pressure
        flux[3] += pressure * velocity
        return flux, velocity.abs() + (GAMMA * pressure / v[0]).sqrt()

    flux_l, speed_l = split(left)
    flux_r, speed_r = split(right)
    return 0.5 * (flux_l + flux_r - torch.maximum(speed_l, speed_r) * (right - left))


x = rusanov(u[:, 1:-1, :-1], u[:, 1:-1, 1:], 1)
y = rusanov(u[:, :-1, 1:-1], u[:, 1:, 1:-1], 2)
want = u.clone()
want[:, 1:-1, 1:-1] -= STEP * (x[:, :, 1:] - x[:, :, :-1] + y[:, 1:] - y[:, :-1])
torch.testing.assert_close(new, want, atol=1e-4, rtol=1e-4)
