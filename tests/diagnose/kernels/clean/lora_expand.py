"""Second half of a LoRA adapter: y += (x @ A) @ B, here the product with B, rank 64.

Fine as it is: the whole inner dimension is one block of 64, so there is no loop and nothing for more pipeline stages
to overlap; the kernel is bound by reading and writing y. The fp32 accumulator is what the tensor core yields.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def lora_b(
    h_ptr,
    b_ptr,
    y_ptr,
    M,
    N,
    stride_h,
    stride_b,
    stride_y,
    scaling,
    R: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    rm = tl.program_id(1) * BM + tl.arange(0, BM)
    rn = tl.program_id(0) * BN + tl.arange(0, BN)
    rr = tl.arange(0, R)
    h = tl.load(h_ptr + rm[:, None] * stride_h + rr[None, :], mask=rm[:, None] < M, other=0.0)
    b = tl.load(b_ptr + rr[:, None] * stride_b + rn[None, :], mask=rn[None, :] < N, other=0.0)
    delta = tl.dot(h, b) * scaling
    y_ptrs = y_ptr + rm[:, None] * stride_y + rn[None, :]
    mask = (rm[:, None] < M) & (rn[None, :] < N)
    y = tl.load(y_ptrs, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptrs, (y + delta).to(y_ptr.dtype.element_ty), mask=mask)


torch.manual_seed(0)
M, N, R = 8192, 4096, 64
h = torch.randn(M, R, device="cuda", dtype=torch.bfloat16)
b = torch.randn(R, N, device="cuda", dtype=torch.bfloat16)
y = torch.randn(M, N, device="cuda", dtype=torch.bfloat16)
ref = y.float() + 0.25 * (h.float() @ b.float())
grid = (triton.cdiv(N, 128), triton.cdiv(M, 64))
lora_b[grid](h, b, y, M, N, h.stride(0), b.stride(0), y.stride(0), 0.25, R=R, BM=64, BN=128, num_warps=4, num_stages=1)
torch.testing.assert_close(y.float(), ref, rtol=2e-2, atol=5e-2)
