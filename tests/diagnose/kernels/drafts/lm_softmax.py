"""Row softmax over a 32000-word vocabulary, one program a row."""

import torch
import triton
import triton.language as tl


@triton.heuristics(
    {
        "BLOCK_N": lambda args: triton.next_power_of_2(args["N"]),
        "num_warps": lambda args: 4,
    }
)
@triton.jit
def softmax_rows(x_ptr, y_ptr, stride_x, stride_y, N, BLOCK_N: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK_N)
    mask = cols < N
    x = tl.load(x_ptr + row * stride_x + cols, mask=mask, other=float("-inf")).to(
        tl.float32  # planted: register-spills
    )
    x = x - tl.max(x, axis=0)
    num = tl.exp(x)
    den = tl.sum(num, axis=0)
    tl.store(y_ptr + row * stride_y + cols, (num / den).to(y_ptr.dtype.element_ty), mask=mask)


torch.manual_seed(0)
M, N = 4096, 32000
x = torch.randn(M, N, device="cuda", dtype=torch.bfloat16) * 4
y = torch.empty_like(x)
softmax_rows[(M,)](x, y, x.stride(0), y.stride(0), N)
torch.testing.assert_close(y, torch.softmax(x, dim=-1), rtol=2e-2, atol=1e-4)
