"""Pre-emphasis of utterances before a spectrum is taken, y[t] = x[t] - 0.97 x[t - 1], one utterance a row.

Fault: the host launches the kernel once an utterance. Each launch has a few microseconds of work, less than it costs
to issue one, and leaves the device idle until the next.
Fix: the utterance is the second axis of one grid.
"""

import torch
import triton
import triton.language as tl

UTTERANCES = 256
SAMPLES = 262144
COEFFICIENT = 0.97


@triton.jit
def pre_emphasis(x_ptr, y_ptr, COEFFICIENT: tl.constexpr, BLOCK: tl.constexpr):  # planted: launch-per-slice
    t = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + t)
    before = tl.load(x_ptr + t - 1, mask=t > 0, other=0.0)
    tl.store(y_ptr + t, x - COEFFICIENT * before)


torch.manual_seed(0)
x = torch.randn(UTTERANCES, SAMPLES, device="cuda")
y = torch.empty(UTTERANCES, SAMPLES, device="cuda")

for utterance in range(UTTERANCES):
    pre_emphasis[(SAMPLES // 1024,)](x[utterance], y[utterance], COEFFICIENT=COEFFICIENT, BLOCK=1024, num_warps=4)

want = x.clone()
want[:, 1:] -= COEFFICIENT * x[:, :-1]
torch.testing.assert_close(y, want, atol=1e-5, rtol=1e-5)
