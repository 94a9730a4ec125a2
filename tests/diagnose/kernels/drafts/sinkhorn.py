"""Twenty Sinkhorn iterations on 4096 matrices of 64 x 64: rows and columns are scaled in turn until all sum to one.

Fault: a launch does one iteration, and the matrices go to memory and come back between any two. They are 67 MB, more
than L2 holds, so that an iteration moves 134 MB, some 45 us with its launch, and twenty take 0.9 ms.
Fix: a matrix is 16 kB and lies in the registers of its program: do all iterations there in one launch. The sums of
twenty iterations are some 10 us of a program's time, about 60 us over all, plus one trip of 134 MB.
"""

import torch
import triton
import triton.language as tl

MATRICES = 4096
SIDE = 64
ITERATIONS = 20


@triton.jit
def sinkhorn(x_ptr, y_ptr, SIDE: tl.constexpr):
    row = tl.arange(0, SIDE)[:, None]
    col = tl.arange(0, SIDE)[None, :]
    at = tl.program_id(0) * SIDE * SIDE + row * SIDE + col
    p = tl.load(x_ptr + at)  # planted: repeated-launch
    p = p / tl.sum(p, axis=1)[:, None]
    p = p / tl.sum(p, axis=0)[None, :]
    tl.store(y_ptr + at, p)


torch.manual_seed(0)
x = torch.randn(MATRICES, SIDE, SIDE, device="cuda").exp()
y = torch.empty_like(x)

sinkhorn[(MATRICES,)](x, y, SIDE=SIDE, num_warps=4)
for _ in range(ITERATIONS - 1):
    sinkhorn[(MATRICES,)](y, y, SIDE=SIDE, num_warps=4)

want = x
for _ in range(ITERATIONS):
    want = want / want.sum(2, keepdim=True)
    want = want / want.sum(1, keepdim=True)
torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-6)
