"""Backward of gelu(x + bias) of 8192 x 4096 values in bf16: gradient of the input, and of the bias over all rows.

Fault: the sums for the bias are added under a lock, one for each block of columns. 128 programs stand in line for each
of the 32 locks, and what is done while it is held is a compare-and-swap, a load, a store and an exchange one after the
other, about 2 us: 128 x 2 us are 260 us in which the waiting programs spin on the same words and hold their places. The
bytes (201 MB) are worth 60 us.
Fix: one atomic addition per column and program, which needs no lock.
"""

import torch
import triton
import triton.language as tl

ROWS = 8192
COLS = 4096


@triton.jit
def bias_gelu_backward(
    x_ptr,
    bias_ptr,
    dy_ptr,
    dx_ptr,
    dbias_ptr,
    lock_ptr,
    COLS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    rm = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    at = rm[:, None] * COLS + rn[None, :]
    x = tl.load(x_ptr + at).to(tl.float32) + tl.load(bias_ptr + rn).to(tl.float32)[None, :]
    dy = tl.load(dy_ptr + at).to(tl.float32)
    cdf = 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))
    pdf = 0.3989422804014327 * tl.exp(-0.5 * x * x)
    dx = dy * (cdf + x * pdf)
    tl.store(dx_ptr + at, dx.to(tl.bfloat16))
    part = tl.sum(dx, axis=0)
    lock_ptr += tl.program_id(0)
    while tl.atomic_cas(lock_ptr, 0, 1) == 1:  # planted: atomic-contention
        pass
    tl.store(dbias_ptr + rn, tl.load(dbias_ptr + rn) + part)
    tl.debug_barrier()
    tl.atomic_xchg(lock_ptr, 0)


torch.manual_seed(0)
x = torch.randn(ROWS, COLS, device="cuda", dtype=torch.bfloat16)
bias = torch.randn(COLS, device="cuda", dtype=torch.bfloat16)
dy = torch.randn(ROWS, COLS, device="cuda", dtype=torch.bfloat16)
dx = torch.empty_like(x)
dbias = torch.zeros(COLS, device="cuda")
lock = torch.zeros(COLS // 128, device="cuda", dtype=torch.int32)

bias_gelu_backward[(COLS // 128, ROWS // 64)](
    x, bias, dy, dx, dbias, lock, COLS=COLS, BLOCK_M=64, BLOCK_N=128, num_warps=8
)

before = (x.float() + bias.float()).requires_grad_()
torch.nn.functional.gelu(before).backward(dy.float())
torch.testing.assert_close(dx.float(), before.grad, rtol=1e-2, atol=1e-2)
torch.testing.assert_close(dbias, before.grad.sum(0), rtol=1e-3, atol=2e-2)
