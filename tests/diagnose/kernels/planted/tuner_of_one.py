"""An autotuner that has nothing to choose from."""

import torch
import triton
import triton.language as tl


@triton.autotune([triton.Config({"BLOCK": 2048}, num_warps=4)], key=["n"])
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):  # planted: autotuner-list
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2, mask=i < n)


n = 1 << 26
x = torch.randn(n, device="cuda")
out = torch.empty_like(x)
double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, out, n)
assert torch.equal(out, 2 * x)
