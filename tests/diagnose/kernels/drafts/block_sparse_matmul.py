"""Block-sparse (64 x 64 blocks, CSR of blocks, a quarter kept) times dense matmul in fp16, autotuned.
Fault: every configuration offered has num_stages=1, so nothing is prefetched: each step waits for its index, then its
tiles, then its MMA. Fix: offer num_stages=3 and 4, with which the tile loads become asynchronous copies that overlap
the MMAs."""

import torch
import triton
import triton.language as tl

M, N, K, BS = 8192, 4096, 8192, 64
DENSITY = 0.25

configs = [triton.Config({"BLOCK_N": n}, num_warps=4, num_stages=s) for n in (64, 128) for s in (1,)]


@triton.autotune(configs=configs, key=["N", "K"])
@triton.jit
def bsr_kernel(val_ptr, rowptr_ptr, col_ptr, b_ptr, c_ptr, N, K, BS: tl.constexpr, BLOCK_N: tl.constexpr):
    pid_n = tl.program_id(1)
    row = tl.program_id(0)
    r = tl.arange(0, BS)
    rn = pid_n * BLOCK_N + tl.arange(0, BLOCK_N)
    lo = tl.load(rowptr_ptr + row)
    hi = tl.load(rowptr_ptr + row + 1)
    acc = tl.zeros((BS, BLOCK_N), tl.float32)
    for i in range(lo, hi):
        col = tl.load(col_ptr + i)
        a = tl.load(val_ptr + i * (BS * BS) + r[:, None] * BS + r[None, :])  # planted: loads-not-pipelined
        b = tl.load(b_ptr + (col * BS + r)[:, None] * N + rn[None, :])
        acc = tl.dot(a, b, acc)
    rm = row * BS + r
    tl.store(c_ptr + rm[:, None] * N + rn[None, :], acc.to(tl.float16))


torch.manual_seed(0)
keep = torch.rand(M // BS, K // BS) < DENSITY
keep[:, 0] = True
rowptr = torch.cat((torch.zeros(1, dtype=torch.int64), keep.sum(1).cumsum(0))).to(device="cuda", dtype=torch.int32)
rows, cols = keep.nonzero(as_tuple=True)
rows, cols = rows.to(device="cuda"), cols.to(device="cuda")
values = torch.randn(cols.numel(), BS, BS, device="cuda", dtype=torch.float16) * 0.05
b = torch.randn(K, N, device="cuda", dtype=torch.float16)
c = torch.empty(M, N, device="cuda", dtype=torch.float16)

bsr_kernel[lambda meta: (M // BS, N // meta["BLOCK_N"])](values, rowptr, cols.to(torch.int32), b, c, N, K, BS)

dense = torch.zeros(M // BS, K // BS, BS, BS, device="cuda", dtype=torch.float16)
dense[rows, cols] = values
ref = dense.permute(0, 2, 1, 3).reshape(M, K) @ b
torch.testing.assert_close(c.float(), ref.float(), rtol=1e-2, atol=2e-2)
