"""FP8 matrix product with one scale per row of A and one per column of B, bf16 result.

Fault: the scales multiply the partial product in every step over K, though they do not depend on K. The accumulator
can then not stay in the tensor core: every step waits for its product, and spends two multiplications and an addition
on each of 128 x 128 results, 384 cycles at 128 lanes, beside a product of 512 cycles (2 x 128^3 at 8192 a cycle);
little of it overlaps, which costs about 1.4x.
Fix: accumulate with the product itself and apply both scales once after the loop.
"""

import torch
import triton
import triton.language as tl

M = 8192
N = 8192
K = 4096


@triton.jit
def fp8_gemm(
    a_ptr,
    b_ptr,
    a_scale_ptr,
    b_scale_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
):
    pid = tl.program_id(0)
    wide = N // BLOCK_N
    band = pid // (GROUP * wide)
    pid_m = band * GROUP + pid % GROUP
    pid_n = pid % (GROUP * wide) // GROUP
    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rm[:, None] * K + rk[None, :]
    b_ptrs = b_ptr + rn[None, :] * K + rk[:, None]
    a_scale = tl.load(a_scale_ptr + rm)
    b_scale = tl.load(b_scale_ptr + rn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs + k)
        b = tl.load(b_ptrs + k)
        acc += tl.dot(a, b) * a_scale[:, None] * b_scale[None, :]  # planted: wgmma-serialised
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.bfloat16))


torch.manual_seed(0)
a = torch.randn(M, K, device="cuda").to(torch.float8_e4m3fn)
b = torch.randn(N, K, device="cuda").to(torch.float8_e4m3fn)
a_scale = (torch.rand(M, device="cuda") + 0.5) * K**-0.5
b_scale = torch.rand(N, device="cuda") + 0.5
c = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)

fp8_gemm[((M // 128) * (N // 128),)](
    a, b, a_scale, b_scale, c, M, N, K, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP=8, num_warps=8, num_stages=3
)

want = (a.float() @ b.float().T) * a_scale[:, None] * b_scale[None, :]
torch.testing.assert_close(c.float(), want, rtol=2e-2, atol=5e-2)
