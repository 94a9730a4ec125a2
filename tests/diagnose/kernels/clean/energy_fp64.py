"""Kinetic energy of many particles, summed in float64 from fp32 velocities and masses.

The sum needs float64, since it runs over 67 M terms and is compared between steps. Four bytes cost less than one
float64 addition here, of which a multiprocessor does 64 a cycle, so the kernel runs at the speed of memory.
"""

import torch
import triton
import triton.language as tl

N = 1 << 26


@triton.jit
def kinetic_energy(mass_ptr, vx_ptr, vy_ptr, vz_ptr, partial_ptr, n, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), tl.float64)
    for start in range(pid * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + lane
        mass = tl.load(mass_ptr + i)
        vx = tl.load(vx_ptr + i)
        vy = tl.load(vy_ptr + i)
        vz = tl.load(vz_ptr + i)
        acc += (mass * (vx * vx + vy * vy + vz * vz)).to(tl.float64)
    tl.store(partial_ptr + pid, 0.5 * tl.sum(acc, axis=0))


torch.manual_seed(0)
mass = torch.rand(N, device="cuda")
vx, vy, vz = (torch.randn(N, device="cuda") for _ in range(3))
partial = torch.empty(132 * 8, device="cuda", dtype=torch.float64)

kinetic_energy[(132 * 8,)](mass, vx, vy, vz, partial, N, BLOCK=1024, num_warps=8)

want = 0.5 * (mass * (vx * vx + vy * vy + vz * vz)).double().sum()
torch.testing.assert_close(partial.sum(), want, rtol=1e-7, atol=0.0)
