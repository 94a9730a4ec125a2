"""W8A8 GEMM: int8 activations with a scale per token, int8 weights with a scale per output channel, bf16 output."""

import torch
import triton
import triton.language as tl

M, N, K = 4096, 8192, 4096


@triton.jit
def w8a8_kernel(
    a_ptr,
    b_ptr,
    sa_ptr,
    sb_ptr,
    c_ptr,
    M,
    N,
    K,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP_M: tl.constexpr,
):
    pid = tl.program_id(0)
    grid_m = tl.cdiv(M, BLOCK_M)
    grid_n = tl.cdiv(N, BLOCK_N)
    width = GROUP_M * grid_n
    first_m = (pid // width) * GROUP_M
    group = min(grid_m - first_m, GROUP_M)
    pid_m = first_m + (pid % width) % group
    pid_n = (pid % width) // group

    rm = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    a_ptrs = a_ptr + rm[:, None] * K + rk[None, :]
    b_ptrs = b_ptr + rn[None, :] * K + rk[:, None]
    sa = tl.load(sa_ptr + rm)
    sb = tl.load(sb_ptr + rn)
    acc = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.int32)
    for _ in range(0, K, BLOCK_K):
        a = tl.load(a_ptrs)
        b = tl.load(b_ptrs)
        acc = tl.dot(a, b, acc, out_dtype=tl.int32)
        a_ptrs += BLOCK_K
        b_ptrs += BLOCK_K
    out = acc.to(tl.float32) * (sa[:, None] * sb[None, :])
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], out.to(tl.bfloat16))


torch.manual_seed(0)
a = torch.randint(-127, 128, (M, K), device="cuda", dtype=torch.int8)
b = torch.randint(-127, 128, (N, K), device="cuda", dtype=torch.int8)
sa = torch.rand(M, device="cuda") * 0.01 + 0.001
sb = torch.rand(N, device="cuda") * 0.01 + 0.001
c = torch.empty(M, N, device="cuda", dtype=torch.bfloat16)

grid = (triton.cdiv(M, 128) * triton.cdiv(N, 128),)
w8a8_kernel[grid](a, b, sa, sb, c, M, N, K, BLOCK_M=128, BLOCK_N=128, BLOCK_K=128, GROUP_M=8, num_warps=8, num_stages=4)

ref = (a[:256].double() @ b.double().T) * sa[:256, None] * sb[None, :]
torch.testing.assert_close(c[:256].float(), ref.float(), rtol=1e-2, atol=1e-2)
