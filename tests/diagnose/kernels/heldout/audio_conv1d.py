"""Causal dilated convolution over time, three taps, 512 channels in and out, as a product over taps x channels.

Fault: the loop over taps and channels is a `while`, which the compiler does not pipeline: each step fetches its tiles,
waits for them, and only then multiplies. The 103 GFLOP take about 160 us when the fetches run ahead; with a wait of
some 700 cycles in front of each product of 512 cycles (2 x 128 x 128 x 64 at 4096 a cycle) it is 2x or more.
Fix: a `for` over a range, so that num_stages takes effect.
"""

import torch
import triton
import triton.language as tl

B = 16
TIME = 4096
CIN = 512
COUT = 512
DILATION = 2


@triton.jit
def conv1d(
    x_ptr,
    w_ptr,
    y_ptr,
    TIME,
    CIN: tl.constexpr,
    COUT: tl.constexpr,
    DILATION: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    rc = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    rt = tl.program_id(1) * BLOCK_T + tl.arange(0, BLOCK_T)
    rk = tl.arange(0, BLOCK_K)
    x_ptr += tl.program_id(2) * TIME * CIN
    w_ptrs = w_ptr + rk[:, None] * COUT + rc[None, :]
    acc = tl.zeros((BLOCK_T, BLOCK_C), tl.float32)
    k = 0
    while k < 3 * CIN:
        t = rt - (2 - k // CIN) * DILATION
        c = tl.multiple_of(k % CIN, BLOCK_K) + rk
        known = t[:, None] >= 0
        x = tl.load(x_ptr + t[:, None] * CIN + c[None, :], mask=known, other=0.0)  # planted: loads-not-pipelined
        w = tl.load(w_ptrs + k * COUT)
        acc = tl.dot(x, w, acc)
        k += BLOCK_K
    y_ptr += tl.program_id(2) * TIME * COUT
    tl.store(y_ptr + rt[:, None] * COUT + rc[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
x = torch.randn(B, TIME, CIN, device="cuda", dtype=torch.bfloat16)
w = torch.randn(3, CIN, COUT, device="cuda", dtype=torch.bfloat16) * (3 * CIN) ** -0.5
y = torch.empty(B, TIME, COUT, device="cuda", dtype=torch.bfloat16)

conv1d[(COUT // 128, TIME // 128, B)](
    x,
    w,
    y,
    TIME,
    CIN=CIN,
    COUT=COUT,
    DILATION=DILATION,
    BLOCK_T=128,
    BLOCK_C=128,
    BLOCK_K=64,
    num_warps=8,
    num_stages=3,
)

want = torch.zeros(B, TIME, COUT, device="cuda")
for tap in range(3):
    late = (2 - tap) * DILATION
    want[:, late:] += x[:, : TIME - late].float() @ w[tap].float()
torch.testing.assert_close(y.float(), want, rtol=1e-2, atol=2e-2)
