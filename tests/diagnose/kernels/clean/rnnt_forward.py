"""RNN-T forward variables: a dynamic program over time, with a log-semiring scan over the label axis at each frame.
Time is serial and there is one program per utterance, because the batch is all the parallelism there is."""

import torch
import triton
import triton.language as tl

B, T, U = 128, 600, 128


@triton.jit
def logaddexp(a, b):
    m = tl.maximum(a, b)
    return m + tl.log(tl.exp(a - m) + tl.exp(b - m))


@triton.jit
def compose(e1, c1, e2, c2):
    return e1 + e2, logaddexp(c1 + e2, c2)


@triton.jit
def alpha_kernel(blank_ptr, emit_ptr, alpha_ptr, T, U: tl.constexpr):
    b = tl.program_id(0)
    u = tl.arange(0, U)
    base = b * T * U
    NEG: tl.constexpr = -1e30
    from_blank = tl.where(u == 0, 0.0, NEG)
    for t in range(0, T):
        row = base + t * U
        step = tl.load(emit_ptr + row + u - 1, mask=u > 0, other=0.0)
        _, alpha = tl.associative_scan((step, from_blank), 0, compose)
        tl.store(alpha_ptr + row + u, alpha)
        from_blank = alpha + tl.load(blank_ptr + row + u)


torch.manual_seed(0)
joint = torch.log_softmax(torch.randn(B, T, U, 3, device="cuda"), dim=-1)
blank = joint[..., 0].contiguous()
emit = joint[..., 1].contiguous()
alpha = torch.empty(B, T, U, device="cuda")

alpha_kernel[(B,)](blank, emit, alpha, T, U, num_warps=1)

ref = torch.full((B, T, U), -1e30, device="cuda", dtype=torch.float64)
for d in range(T + U - 1):
    us = torch.arange(max(0, d - T + 1), min(U, d + 1), device="cuda")
    ts = d - us
    up = torch.where(ts > 0, ref[:, (ts - 1).clamp(min=0), us] + blank[:, (ts - 1).clamp(min=0), us], -1e30)
    left = torch.where(us > 0, ref[:, ts, (us - 1).clamp(min=0)] + emit[:, ts, (us - 1).clamp(min=0)], -1e30)
    ref[:, ts, us] = torch.logaddexp(up, left) if d else torch.zeros(B, 1, device="cuda", dtype=torch.float64)
torch.testing.assert_close(alpha, ref.float(), rtol=1e-4, atol=1e-3)
