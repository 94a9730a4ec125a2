"""RMS norm of each head of the queries, 128 numbers in bf16, before attention.

Fault: a program for each head of each token, on one warp. Each thread has 8 bytes and an SM holds 32 programs, but half a
million of them take longer to start than their 268 MB to move.
Fix: 16 heads a program, as a tile of heads x numbers.
"""

import torch
import triton
import triton.language as tl

TOKENS = 16384
HEADS = 32
DIM = 128


@triton.jit
def head_norm(q_ptr, weight_ptr, out_ptr, DIM: tl.constexpr, EPS: tl.constexpr):
    head = tl.program_id(0)
    d = tl.arange(0, DIM)
    q = tl.load(q_ptr + head * DIM + d).to(tl.float32)  # planted: program-per-item
    weight = tl.load(weight_ptr + d).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(q * q) / DIM + EPS)
    tl.store(out_ptr + head * DIM + d, (q * scale * weight).to(tl.bfloat16))


torch.manual_seed(0)
q = torch.randn(TOKENS, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(DIM, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(q)

head_norm[(TOKENS * HEADS,)](q, weight, out, DIM=DIM, EPS=1e-6, num_warps=1)

want = torch.nn.functional.rms_norm(q.float(), (DIM,), weight.float(), 1e-6)
torch.testing.assert_close(out.float(), want, rtol=1e-2, atol=1e-2)
