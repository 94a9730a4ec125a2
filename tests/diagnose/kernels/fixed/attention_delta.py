"""First step of attention's backward: for each row of the output, the sum of output times its gradient."""

import torch
import triton
import triton.language as tl

B = 2
HEADS = 32
SEQ = 8192
D = 64


@triton.jit
def attention_delta(o_ptr, do_ptr, delta_ptr, D: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    o = tl.load(o_ptr + at).to(tl.float32)
    do = tl.load(do_ptr + at).to(tl.float32)
    tl.store(delta_ptr + row, tl.sum(o * do, axis=1))


torch.manual_seed(0)
o = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
do = torch.randn(B, HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
delta = torch.empty(B, HEADS, SEQ, device="cuda")

attention_delta[(B * HEADS * SEQ // 64,)](o, do, delta, D=D, BLOCK=64, num_warps=4)

torch.testing.assert_close(delta, (o.float() * do.float()).sum(-1), rtol=1e-4, atol=1e-3)
