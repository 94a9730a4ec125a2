"""Gradient of an embedding table: every token adds its gradient row to its word's row.

Fine as it is: words repeat, so the additions must be atomic; they are spread over 32000 rows and hardly ever collide,
they are contiguous along the row, and sorting the tokens first would cost more. The fp32 table is needed for the sums.
"""

import torch
import triton
import triton.language as tl


@triton.jit
def scatter_add_rows(grad_ptr, token_ptr, table_ptr, D, BLOCK_D: tl.constexpr):
    t = tl.program_id(0).to(tl.int64)
    d = tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D)
    word = tl.load(token_ptr + t)
    g = tl.load(grad_ptr + t * D + d, mask=d < D, other=0.0).to(tl.float32)
    tl.atomic_add(table_ptr + word * D + d, g, mask=d < D, sem="relaxed")


torch.manual_seed(0)
T, VOCAB, D = 8192, 32000, 4096
grad = torch.randn(T, D, device="cuda", dtype=torch.bfloat16)
tokens = torch.randint(0, VOCAB, (T,), device="cuda")
table_grad = torch.zeros(VOCAB, D, device="cuda", dtype=torch.float32)
scatter_add_rows[(T, triton.cdiv(D, 1024))](grad, tokens, table_grad, D, BLOCK_D=1024, num_warps=4)
ref = torch.zeros_like(table_grad).index_add_(0, tokens, grad.float())
torch.testing.assert_close(table_grad, ref, rtol=1e-4, atol=1e-4)
