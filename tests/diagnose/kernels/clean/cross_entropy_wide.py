"""Loss of wide rows and its gradient in their place: tiles of 32 elements a thread of 32 warps."""

import torch
import triton
import triton.language as tl


@triton.jit
def loss_and_gradient(x, stride, labels, loss, columns, rows, ignored, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    label = tl.load(labels + row)
    x += row * stride
    if label == ignored:
        for first in range(0, columns, BLOCK):
            i = first + tl.arange(0, BLOCK)
            tl.store(x + i, 0.0, mask=i < columns)
        return
    largest, total = float("-inf"), 0.0
    chosen = tl.load(x + label).to(tl.float32)
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        logits = tl.load(x + i, mask=i < columns, other=float("-inf")).to(tl.float32)
        of_tile = tl.max(logits)
        new = tl.maximum(largest, of_tile)
        total = total * tl.exp(largest - new) + tl.sum(tl.exp(logits - new))
        largest = new
    for first in range(0, columns, BLOCK):
        i = first + tl.arange(0, BLOCK)
        logits = tl.load(x + i, mask=i < columns, other=float("-inf")).to(tl.float32)
        share = tl.exp(logits - largest) / total
        share = tl.where(i != label, share, share - 1.0) / rows
        tl.store(x + i, share.to(tl.bfloat16), mask=i < columns)
    tl.store(loss + row, (largest + tl.log(total) - chosen) / rows)


rows, columns = 8192, 128256
x = torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16)
labels = torch.randint(0, columns, (rows,), device="cuda")
loss = torch.empty(rows, device="cuda")
expected = torch.nn.functional.cross_entropy(x.float(), labels)
loss_and_gradient[(rows,)](x, columns, labels, loss, columns, rows, -100, BLOCK=32768, num_warps=32)
torch.testing.assert_close(loss.sum(), expected, rtol=1e-3, atol=1e-3)
