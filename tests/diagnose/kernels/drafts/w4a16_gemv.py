"""Decode-time matrix-vector product with 4-bit weights (GPTQ packing: eight nibbles of K to an int32)."""

import torch
import triton
import triton.language as tl


@triton.jit
def w4_gemv(x_ptr, qw_ptr, scale_ptr, y_ptr, N, K, stride_qk, stride_sk, GROUP: tl.constexpr, BLOCK_N: tl.constexpr):
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, GROUP)
    shifts = (rk % 8) * 4
    acc = tl.zeros((GROUP, BLOCK_N), dtype=tl.float32)
    for g in range(0, K // GROUP):
        offs_k = g * GROUP + rk
        q = tl.load(qw_ptr + (offs_k[:, None] // 8) * stride_qk + offs_n[None, :])  # planted: redundant-load
        s = tl.load(scale_ptr + g * stride_sk + offs_n).to(tl.float32)
        xv = tl.load(x_ptr + offs_k).to(tl.float32)
        nib = (q >> shifts[:, None]) & 0xF
        acc += (nib - 8).to(tl.float32) * xv[:, None] * s[None, :]
    tl.store(y_ptr + offs_n, tl.sum(acc, axis=0).to(y_ptr.dtype.element_ty))


torch.manual_seed(0)
N, K, GROUP = 28672, 8192, 128
x = torch.randn(K, device="cuda", dtype=torch.float16)
qweight = torch.randint(-(2**31), 2**31 - 1, (K // 8, N), device="cuda", dtype=torch.int32)
scales = torch.rand(K // GROUP, N, device="cuda", dtype=torch.float16) * 0.01 + 0.001
y = torch.empty(N, device="cuda", dtype=torch.float16)
w4_gemv[(N // 64,)](
    x, qweight, scales, y, N, K, qweight.stride(0), scales.stride(0), GROUP=GROUP, BLOCK_N=64, num_warps=4
)

shift = torch.arange(0, 32, 4, device="cuda", dtype=torch.int32)
w = (((qweight[:, None, :] >> shift[None, :, None]) & 15) - 8).reshape(K, N).to(torch.float16)
w = w * scales.repeat_interleave(GROUP, dim=0)
torch.testing.assert_close(y.float(), (x.float()[None] @ w.float())[0], rtol=1e-2, atol=5e-2)
