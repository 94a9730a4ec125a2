"""Projector of a vision-language model: 2112 tokens (11 x 192), 8192 to 2048, bias and quick GELU, bf16, by TMA.

Fault: tiles of 128 x 256 make 17 x 8 = 136 programs for 132 multiprocessors, one on each at a time. Four are left over,
and while they run alone 128 multiprocessors wait; half of the last row of tiles is beyond the matrix besides. A tile
takes about 95 us, so 190 us instead of some 100 us for 71 GFLOP.
Fix: tiles of 64 x 256, two on each multiprocessor at a time: 33 x 8 = 264 programs are exactly one
wave. BLOCK_K=32 with five stages leaves room for both in shared memory.
"""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

TOKENS = 2112
WIDTH_IN = 8192
WIDTH_OUT = 2048


@triton.jit
def projector_gemm(  # planted: tail-wave
    x_desc, w_desc, bias_ptr, y_desc, WIDTH_IN, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr
):
    m = tl.program_id(0) * BLOCK_M
    n = tl.program_id(1) * BLOCK_N
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(0, WIDTH_IN, BLOCK_K):
        x = x_desc.load([m, k])
        w = w_desc.load([n, k])
        acc = tl.dot(x, w.T, acc)
    acc += tl.load(bias_ptr + n + tl.arange(0, BLOCK_N)).to(tl.float32)[None, :]
    acc *= tl.sigmoid(1.702 * acc)
    y_desc.store([m, n], acc.to(tl.bfloat16))


BLOCK_M, BLOCK_N, BLOCK_K = 128, 256, 64
torch.manual_seed(0)
x = torch.randn(TOKENS, WIDTH_IN, device="cuda", dtype=torch.bfloat16)
w = (torch.randn(WIDTH_OUT, WIDTH_IN, device="cuda") * WIDTH_IN**-0.5).bfloat16()
bias = torch.randn(WIDTH_OUT, device="cuda", dtype=torch.bfloat16)
y = torch.empty(TOKENS, WIDTH_OUT, device="cuda", dtype=torch.bfloat16)

projector_gemm[(triton.cdiv(TOKENS, BLOCK_M), WIDTH_OUT // BLOCK_N)](
    TensorDescriptor.from_tensor(x, [BLOCK_M, BLOCK_K]),
    TensorDescriptor.from_tensor(w, [BLOCK_N, BLOCK_K]),
    bias,
    TensorDescriptor.from_tensor(y, [BLOCK_M, BLOCK_N]),
    WIDTH_IN,
    BLOCK_M=BLOCK_M,
    BLOCK_N=BLOCK_N,
    BLOCK_K=BLOCK_K,
    num_warps=8,
    num_stages=4,
)

want = x.float() @ w.float().T + bias.float()
want = want * torch.sigmoid(1.702 * want)
torch.testing.assert_close(y.float(), want, rtol=2e-2, atol=2e-2)
