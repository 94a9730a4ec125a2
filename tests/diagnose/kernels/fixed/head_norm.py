"""RMS norm of each head of the queries, 128 numbers in bf16, before attention."""

import torch
import triton
import triton.language as tl

TOKENS = 16384
HEADS = 32
DIM = 128


@triton.jit
def head_norm(q_ptr, weight_ptr, out_ptr, DIM: tl.constexpr, EPS: tl.constexpr, BLOCK: tl.constexpr):
    head = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, DIM)
    at = head[:, None] * DIM + d[None, :]
    q = tl.load(q_ptr + at).to(tl.float32)
    weight = tl.load(weight_ptr + d).to(tl.float32)
    scale = tl.math.rsqrt(tl.sum(q * q, axis=1) / DIM + EPS)
    tl.store(out_ptr + at, (q * scale[:, None] * weight[None, :]).to(tl.bfloat16))


torch.manual_seed(0)
q = torch.randn(TOKENS, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
weight = torch.randn(DIM, device="cuda", dtype=torch.bfloat16)
out = torch.empty_like(q)

head_norm[(TOKENS * HEADS // 16,)](q, weight, out, DIM=DIM, EPS=1e-6, BLOCK=16, num_warps=4)

want = torch.nn.functional.rms_norm(q.float(), (DIM,), weight.float(), 1e-6)
torch.testing.assert_close(out.float(), want, rtol=1e-2, atol=1e-2)
