"""Logits capped softly by 30 tanh(x / 30).

Fault: the launch has one program of four warps for each multiprocessor, which loads 2 KB, waits for them, stores them
and goes on. 270 KB are in flight on the whole device, where its bandwidth times its latency is about 2 MB: 268 MB take
0.5 ms instead of 95 us.
Fix: a program for each block, so that a dozen of them share a multiprocessor and one loads while others wait.
"""

import torch
import triton
import triton.language as tl

N = 1 << 26
CAP = 30.0


@triton.jit
def logit_softcap(x_ptr, out_ptr, n, cap, BLOCK: tl.constexpr):
    for start in range(tl.program_id(0) * BLOCK, n, tl.num_programs(0) * BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)  # planted: few-bytes-in-flight
        y = cap - 2.0 * cap / (1.0 + tl.exp(x * (2.0 / cap)))
        tl.store(out_ptr + i, y.to(tl.bfloat16), mask=i < n)


torch.manual_seed(0)
x = torch.randn(N, device="cuda", dtype=torch.bfloat16) * 40
out = torch.empty_like(x)

logit_softcap[(132,)](x, out, N, CAP, BLOCK=1024, num_warps=4)

torch.testing.assert_close(out.float(), CAP * torch.tanh(x.float() / CAP), rtol=1e-2, atol=1e-2)
