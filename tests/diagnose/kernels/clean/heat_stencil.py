"""One explicit step of the heat equation on a 512^3 grid, fp32, edges held.

The neighbours along y and x are within the tile and come out of L1; those along z come out of L2, where the planes next
to each other in launch order still are. Memory sees each value once on its way in and once on its way out.
"""

import torch
import triton
import triton.language as tl

NZ = 512
NY = 512
NX = 512


@triton.jit
def heat_step(u_ptr, out_ptr, k, NZ, NY: tl.constexpr, NX: tl.constexpr, BLOCK_Y: tl.constexpr, BLOCK_X: tl.constexpr):
    x = (tl.program_id(0) * BLOCK_X + tl.arange(0, BLOCK_X))[None, :]
    y = (tl.program_id(1) * BLOCK_Y + tl.arange(0, BLOCK_Y))[:, None]
    z = tl.program_id(2)
    at = (z * NY + y) * NX + x
    here = tl.load(u_ptr + at)
    inside = (x > 0) & (x < NX - 1) & (y > 0) & (y < NY - 1) & (z > 0) & (z < NZ - 1)
    inner_z = (z > 0) & (z < NZ - 1)
    inner_y = (y > 0) & (y < NY - 1) & inner_z
    around = tl.load(u_ptr + at - 1, mask=inside, other=0.0) + tl.load(u_ptr + at + 1, mask=inside, other=0.0)
    around += tl.load(u_ptr + at - NX, mask=inner_y, other=0.0) + tl.load(u_ptr + at + NX, mask=inner_y, other=0.0)
    around += tl.load(u_ptr + at - NY * NX, mask=inner_z, other=0.0)
    around += tl.load(u_ptr + at + NY * NX, mask=inner_z, other=0.0)
    tl.store(out_ptr + at, tl.where(inside, here + k * (around - 6.0 * here), here))


torch.manual_seed(0)
u = torch.randn(NZ, NY, NX, device="cuda")
out = torch.empty_like(u)

heat_step[(NX // 128, NY // 16, NZ)](u, out, 0.1, NZ, NY=NY, NX=NX, BLOCK_Y=16, BLOCK_X=128, num_warps=4)

want = u.clone()
mid = u[1:-1, 1:-1, 1:-1]
around = u[:-2, 1:-1, 1:-1] + u[2:, 1:-1, 1:-1] + u[1:-1, :-2, 1:-1] + u[1:-1, 2:, 1:-1]
around += u[1:-1, 1:-1, :-2] + u[1:-1, 1:-1, 2:]
want[1:-1, 1:-1, 1:-1] = mid + 0.1 * (around - 6.0 * mid)
torch.testing.assert_close(out, want, rtol=1e-4, atol=1e-4)
