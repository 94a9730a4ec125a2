"""Scores of the edges of a graph (SDDMM): the product of the features of an edge's two ends, 64 of them in bf16.

Fault: a program for each edge, with 4 warps for 64 features: 2 million programs that each wait for two indices, then
for two rows, and reduce 64 values over 128 threads; starting them alone takes longer than the data, 0.5 GB out of L2.
Fix: 64 edges a program, as a tile of edges x features.
"""

import torch
import triton
import triton.language as tl

NODES = 131072
EDGES = 2097152
DIM = 64


@triton.jit
def edge_scores(source_ptr, target_ptr, q_ptr, k_ptr, out_ptr, DIM: tl.constexpr):
    edge = tl.program_id(0)
    d = tl.arange(0, DIM)
    source = tl.load(source_ptr + edge)
    target = tl.load(target_ptr + edge)
    q = tl.load(q_ptr + source * DIM + d).to(tl.float32)  # planted: idle-threads
    k = tl.load(k_ptr + target * DIM + d).to(tl.float32)
    tl.store(out_ptr + edge, tl.sum(q * k))


torch.manual_seed(0)
source = torch.randint(0, NODES, (EDGES,), device="cuda", dtype=torch.int32)
target = torch.randint(0, NODES, (EDGES,), device="cuda", dtype=torch.int32)
q = torch.randn(NODES, DIM, device="cuda", dtype=torch.bfloat16)
k = torch.randn(NODES, DIM, device="cuda", dtype=torch.bfloat16)
out = torch.empty(EDGES, device="cuda")

edge_scores[(EDGES,)](source, target, q, k, out, DIM=DIM)

for part in range(0, EDGES, 262144):
    at = slice(part, part + 262144)
    want = (q[source[at].long()].float() * k[target[at].long()].float()).sum(1)
    torch.testing.assert_close(out[at], want, rtol=1e-3, atol=1e-3)
