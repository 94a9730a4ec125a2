"""A cross entropy over a large vocabulary, in one pass."""

import torch
import triton
import triton.language as tl


@triton.jit
def cross_entropy(logits, target, loss, columns, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    highest = tl.full((BLOCK,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK,), tl.float32)
    for start in range(0, columns, BLOCK):
        i = start + tl.arange(0, BLOCK)
        x = tl.load(logits + row * columns + i, mask=i < columns, other=float("-inf")).to(tl.float32)
        higher = tl.maximum(highest, x)
        total = total * tl.exp(highest - higher) + tl.exp(x - higher)
        highest = higher
    top = tl.max(highest, 0)
    total = tl.sum(total * tl.exp(highest - top), 0)
    chosen = tl.load(logits + row * columns + tl.load(target + row)).to(tl.float32)
    tl.store(loss + row, tl.log(total) + top - chosen)


logits = torch.randn(4096, 128_256, device="cuda", dtype=torch.bfloat16)
target = torch.randint(0, 128_256, (4096,), device="cuda")
loss = torch.empty(4096, device="cuda")
cross_entropy[(4096,)](logits, target, loss, 128_256, 4096, num_warps=8)
expected = torch.nn.functional.cross_entropy(logits.float(), target, reduction="none")
torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-3)
