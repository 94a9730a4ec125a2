"""Grouped GEMM of an MoE layer: tokens sorted by expert (padded to the tile), weights [E, N, K], TMA loads.
Fault: BLOCK_K is 16, so each step moves two 4 KB boxes with 32-byte rows and issues a single k16 MMA per
instruction group: waiting on barriers and issuing copies costs more than the MMA. Fix: BLOCK_K = 64, which is 128-byte
rows (the widest swizzle) and a quarter of the steps."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

E, T, N, K = 16, 8192, 2048, 2048
BM, BN, BK = 128, 128, 16


@triton.jit
def grouped_kernel(x_desc, w_ptr, expert_ptr, y_desc, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid_n = tl.program_id(0)
    pid_m = tl.program_id(1)
    e = tl.load(expert_ptr + pid_m)
    w_base = w_ptr + e.to(tl.int64) * N * K
    acc = tl.zeros((BM, BN), tl.float32)
    w_desc = tl.make_tensor_descriptor(w_base, shape=[N, K], strides=[K, 1], block_shape=[BN, BK])
    for k in range(0, K, BK):
        x = x_desc.load([pid_m * BM, k])
        w = w_desc.load([pid_n * BN, k])
        acc = tl.dot(x, w.T, acc)  # planted: small-tile
    y_desc.store([pid_m * BM, pid_n * BN], acc.to(tl.bfloat16))


torch.manual_seed(0)
triton.set_allocator(lambda size, align, stream: torch.empty(size, dtype=torch.int8, device="cuda"))
block_expert = torch.sort(torch.randint(0, E, (T // BM,))).values.to(device="cuda", dtype=torch.int32)
x = torch.randn(T, K, device="cuda", dtype=torch.bfloat16)
w = torch.randn(E, N, K, device="cuda", dtype=torch.bfloat16) * 0.02
y = torch.empty(T, N, device="cuda", dtype=torch.bfloat16)
x_desc = TensorDescriptor.from_tensor(x, [BM, BK])
y_desc = TensorDescriptor.from_tensor(y, [BM, BN])

grouped_kernel[(N // BN, T // BM)](x_desc, w, block_expert, y_desc, N, K, BM, BN, BK, num_warps=8, num_stages=3)

token_expert = block_expert.repeat_interleave(BM)
for e in range(E):
    sel = token_expert == e
    torch.testing.assert_close(y[sel].float(), x[sel].float() @ w[e].float().T, rtol=2e-2, atol=2e-2)
