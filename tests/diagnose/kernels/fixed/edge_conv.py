"""Edge convolution on a graph: the largest of x_i A + (x_j - x_i) B over the 16 neighbours j of each node i."""

import torch
import triton
import triton.language as tl

NODES = 32768
NEIGHBOURS = 16
C = 256
OUT = 256


@triton.jit
def edge_conv(
    here_ptr, there_ptr, neighbour_ptr, out_ptr, NEIGHBOURS: tl.constexpr, OUT: tl.constexpr, BLOCK: tl.constexpr
):
    node = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    o = tl.arange(0, OUT)
    best = tl.full((BLOCK, OUT), float("-inf"), tl.float32)
    for n in tl.static_range(NEIGHBOURS):
        other = tl.load(neighbour_ptr + node * NEIGHBOURS + n)
        best = tl.maximum(best, tl.load(there_ptr + other[:, None] * OUT + o[None, :]).to(tl.float32))
    best += tl.load(here_ptr + node[:, None] * OUT + o[None, :]).to(tl.float32)
    tl.store(out_ptr + node[:, None] * OUT + o[None, :], best.to(tl.bfloat16))


torch.manual_seed(0)
x = torch.randn(NODES, C, device="cuda", dtype=torch.bfloat16)
w_self = torch.randn(C, OUT, device="cuda", dtype=torch.bfloat16) * C**-0.5
w_edge = torch.randn(C, OUT, device="cuda", dtype=torch.bfloat16) * C**-0.5
neighbour = torch.randint(0, NODES, (NODES, NEIGHBOURS), device="cuda", dtype=torch.int32)
out = torch.empty(NODES, OUT, device="cuda", dtype=torch.bfloat16)

here = x @ (w_self - w_edge)
there = x @ w_edge
edge_conv[(NODES // 8,)](here, there, neighbour, out, NEIGHBOURS=NEIGHBOURS, OUT=OUT, BLOCK=8, num_warps=4)

near = (x.float() @ w_edge.float())[neighbour.long()].amax(1)
want = x.float() @ (w_self.float() - w_edge.float()) + near
torch.testing.assert_close(out.float(), want, rtol=3e-2, atol=6e-2)
