"""Normalisers of attention scores, whose keys TMA copies ahead."""

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def normalisers(q_desc, k_desc, out, S, BM: tl.constexpr, BN: tl.constexpr):
    head, first = tl.program_id(1) * S, tl.program_id(0) * BM
    q = q_desc.load([head + first, 0])
    largest = tl.full([BM], float("-inf"), tl.float32)
    total = tl.zeros([BM], tl.float32)
    for n in tl.range(0, S, BN, num_stages=2):
        k = k_desc.load([head + n, 0])
        scores = tl.dot(q, k.T)
        new = tl.maximum(largest, tl.max(scores, 1))
        total = total * tl.exp2(largest - new) + tl.sum(tl.exp2(scores - new[:, None]), 1)
        largest = new
    tl.store(out + head + first + tl.arange(0, BM), largest + tl.log2(total))


q, k = torch.randn(2, 64 * 4096, 128, device="cuda", dtype=torch.bfloat16).unbind(0)
descriptors = [TensorDescriptor.from_tensor(x, [128, 128]) for x in (q, k)]
out = torch.empty(64 * 4096, device="cuda")
normalisers[(32, 64)](*descriptors, out, 4096, 128, 128, num_warps=8)
scores = q[:4096].float() @ k[:4096].float().T
torch.testing.assert_close(out[:4096], torch.logsumexp(scores * 0.6931472, 1) / 0.6931472, rtol=1e-3, atol=1e-2)
