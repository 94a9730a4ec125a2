"""Softmax and top-2 choice of a mixture-of-experts router."""

import torch
import triton
import triton.language as tl


@triton.jit
def route_top2(logits_ptr, weight_ptr, id_ptr, T, stride, E: tl.constexpr):
    row = tl.program_id(0)
    e = tl.arange(0, E)
    x = tl.load(logits_ptr + row * stride + e)  # planted: idle-threads
    first = tl.max(x, axis=0)
    i1 = tl.argmax(x, axis=0)
    z = tl.sum(tl.exp(x - first), axis=0)
    rest = tl.where(e == i1, float("-inf"), x)
    second = tl.max(rest, axis=0)
    i2 = tl.argmax(rest, axis=0)
    tl.store(weight_ptr + row * 2, 1.0 / z)
    tl.store(weight_ptr + row * 2 + 1, tl.exp(second - first) / z)
    tl.store(id_ptr + row * 2, i1)
    tl.store(id_ptr + row * 2 + 1, i2)


torch.manual_seed(0)
T, E = 131072, 64
logits = torch.randn(T, E, device="cuda", dtype=torch.float32)
weights = torch.empty(T, 2, device="cuda", dtype=torch.float32)
ids = torch.empty(T, 2, device="cuda", dtype=torch.int32)
route_top2[(T,)](logits, weights, ids, T, logits.stride(0), E=E)
probs = torch.softmax(logits, dim=-1)
torch.testing.assert_close(weights, probs.topk(2, dim=-1).values, rtol=1e-4, atol=1e-5)
torch.testing.assert_close(probs.gather(1, ids.long()), weights, rtol=1e-4, atol=1e-5)
