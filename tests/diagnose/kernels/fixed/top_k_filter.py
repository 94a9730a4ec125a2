"""Keep the 128 largest of 16384 logits in each row and set the others to minus infinity."""

import torch
import triton
import triton.language as tl

ROWS = 2048
VOCAB = 16384
TOP = 128


@triton.jit
def top_k_filter(x_ptr, y_ptr, TOP, VOCAB: tl.constexpr):
    i = tl.program_id(0) * VOCAB + tl.arange(0, VOCAB)
    x = tl.load(x_ptr + i)
    bits = x.to(tl.int32, bitcast=True)
    # unsigned integers in the order of the values: all bits of a negative number turned, the sign of the others
    key = (bits ^ ((bits >> 31) | -2147483648)).to(tl.uint32, bitcast=True)
    kth = tl.full((), 0, tl.uint32)
    one = tl.full((), 1, tl.uint32)
    for bit in range(32):
        larger = kth | (one << (31 - bit))
        kth = tl.where(tl.sum((key >= larger).to(tl.int32), axis=0) >= TOP, larger, kth)
    tl.store(y_ptr + i, tl.where(key >= kth, x, -float("inf")))


torch.manual_seed(0)
x = torch.rand(ROWS, VOCAB, device="cuda").argsort(dim=1).float() * (40.0 / VOCAB) - 20.0  # no value twice in a row
y = torch.empty_like(x)

top_k_filter[(ROWS,)](x, y, TOP, VOCAB=VOCAB, num_warps=16)

kth = torch.topk(x, TOP, dim=1).values[:, -1:]
torch.testing.assert_close(y, x.masked_fill(x < kth, -float("inf")))
