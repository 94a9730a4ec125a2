"""Fused gate/up projection of an 8B model during prefill, through tensor descriptors."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def gate_up_kernel(a_desc, b_desc, c_desc, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    num_n = tl.cdiv(N, BN)
    pid_m = pid // num_n
    pid_n = pid % num_n  # planted: program-order
    off_m = pid_m * BM
    off_n = pid_n * BN
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BK)):
        a = a_desc.load([off_m, k * BK])
        b = b_desc.load([off_n, k * BK])
        acc = tl.dot(a, b.T, acc)
    c_desc.store([off_m, off_n], acc.to(tl.bfloat16))


torch.manual_seed(0)
TOKENS, HIDDEN, INNER2 = 4096, 4096, 28672
x = torch.randn(TOKENS, HIDDEN, device="cuda", dtype=torch.bfloat16)
w = torch.randn(INNER2, HIDDEN, device="cuda", dtype=torch.bfloat16) / 64
y = torch.empty(TOKENS, INNER2, device="cuda", dtype=torch.bfloat16)
BM, BN, BK = 128, 128, 64
x_desc = TensorDescriptor.from_tensor(x, [BM, BK])
w_desc = TensorDescriptor.from_tensor(w, [BN, BK])
y_desc = TensorDescriptor.from_tensor(y, [BM, BN])
grid = (triton.cdiv(TOKENS, BM) * triton.cdiv(INNER2, BN),)
gate_up_kernel[grid](x_desc, w_desc, y_desc, TOKENS, INNER2, HIDDEN, BM, BN, BK, num_warps=4, num_stages=3)
torch.testing.assert_close(y, x @ w.T, rtol=2e-2, atol=2e-2)
