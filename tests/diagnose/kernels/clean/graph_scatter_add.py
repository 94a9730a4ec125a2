"""Graph convolution message passing: out[dst] += w * x[src] over an unsorted edge list that changes each batch.
Two programs may hit the same node, so the atomics are needed; the destinations are spread over 200k nodes."""

import torch
import triton
import triton.language as tl

NNODES, NEDGES, D = 200_000, 1_600_000, 64


@triton.jit
def scatter_kernel(x_ptr, src_ptr, dst_ptr, w_ptr, out_ptr, n_edges, D: tl.constexpr, EDGES: tl.constexpr):
    re = tl.program_id(0) * EDGES + tl.arange(0, EDGES)
    rd = tl.arange(0, D)
    live = re < n_edges
    src = tl.load(src_ptr + re, mask=live, other=0)
    dst = tl.load(dst_ptr + re, mask=live, other=0)
    w = tl.load(w_ptr + re, mask=live, other=0.0)
    x = tl.load(x_ptr + src[:, None] * D + rd[None, :], mask=live[:, None], other=0.0)
    tl.atomic_add(out_ptr + dst[:, None] * D + rd[None, :], x * w[:, None], mask=live[:, None], sem="relaxed")


torch.manual_seed(0)
x = torch.randn(NNODES, D, device="cuda")
src = torch.randint(0, NNODES, (NEDGES,), device="cuda", dtype=torch.int32)
dst = torch.randint(0, NNODES, (NEDGES,), device="cuda", dtype=torch.int32)
w = torch.rand(NEDGES, device="cuda")
out = torch.zeros(NNODES, D, device="cuda")

scatter_kernel[(triton.cdiv(NEDGES, 32),)](x, src, dst, w, out, NEDGES, D, EDGES=32, num_warps=4)

ref = torch.zeros_like(out).index_add_(0, dst.long(), x[src.long()] * w[:, None])
torch.testing.assert_close(out, ref, rtol=1e-4, atol=1e-4)
