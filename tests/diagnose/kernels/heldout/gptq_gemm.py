"""Product of 16 rows with a weight matrix of 4-bit integers, eight to a 32-bit word along K, one scale per 128 of K.

Fault: the tile of weights is loaded as [BLOCK_K, BLOCK_N] words with row k // 8, so each word is fetched eight times,
once for each integer in it. The weights are 117 MB and the product is bound by reading them (36 us at 3.3 TB/s; about
70 us with the unpacking); the copies make it 0.94 GB out of L2 and through shared memory, 170 us at 5.5 TB/s.
Fix: load each word once, as [BLOCK_K // 8, BLOCK_N], shift it by the eight amounts along a new axis and reshape.
"""

import torch
import triton
import triton.language as tl

M = 16
K = 8192
N = 28672
GROUP = 128


@triton.jit
def gptq_gemm(
    x_ptr, w_ptr, scale_ptr, y_ptr, N, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    rm = tl.arange(0, BLOCK_M)
    rn = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    rk = tl.arange(0, BLOCK_K)
    x_ptrs = x_ptr + rm[:, None] * K + rk[None, :]
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, K, BLOCK_K):
        x = tl.load(x_ptrs + k)
        words = tl.load(w_ptr + ((k + rk) // 8)[:, None] * N + rn[None, :])  # planted: redundant-load
        nibbles = words >> ((rk % 8) * 4)[:, None]
        # 0x6400 | n is the fp16 number 1024 + n; the zero point is 8
        w = ((nibbles & 0xF) | 0x6400).to(tl.int16).to(tl.float16, bitcast=True) - 1032.0
        scale = tl.load(scale_ptr + (k // BLOCK_K) * N + rn)
        acc += tl.dot(x, w) * scale[None, :]
    tl.store(y_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


torch.manual_seed(0)
x = torch.randn(M, K, device="cuda", dtype=torch.float16)
w = torch.randint(-(2**31), 2**31, (K // 8, N), device="cuda", dtype=torch.int32)
scale = (torch.rand(K // GROUP, N, device="cuda") + 0.5) * 0.01
y = torch.empty(M, N, device="cuda", dtype=torch.float16)

gptq_gemm[(N // 64,)](x, w, scale, y, N, K, BLOCK_M=M, BLOCK_N=64, BLOCK_K=GROUP, num_warps=4, num_stages=3)

shifts = torch.arange(8, device="cuda", dtype=torch.int32) * 4
unpacked = ((w[:, None, :] >> shifts[None, :, None]) & 0xF).reshape(K, N).float() - 8
want = x.float() @ (unpacked * scale.repeat_interleave(GROUP, 0))
torch.testing.assert_close(y.float(), want, rtol=1e-2, atol=3e-2)
