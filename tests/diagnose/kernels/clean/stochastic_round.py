"""Round fp32 weights to bf16 up or down at random, in proportion to the distance, so that the mean stays.

The 16 bits that bf16 drops are compared by adding 16 random bits below them; one Philox call serves eight values.
"""

import torch
import triton
import triton.language as tl

N = 1 << 26


@triton.jit
def stochastic_round(x_ptr, y_ptr, seed, BLOCK: tl.constexpr):
    pid = tl.program_id(0)
    lane = tl.arange(0, BLOCK)
    words = tl.randint4x(seed, pid * BLOCK + lane, n_rounds=7)  # seven rounds pass BigCrush
    for part in tl.static_range(8):
        i = pid * (8 * BLOCK) + part * BLOCK + lane
        noise = (words[part // 2].to(tl.uint32, bitcast=True) >> (16 * (part % 2))) & 0xFFFF
        bits = tl.load(x_ptr + i).to(tl.uint32, bitcast=True) + noise
        tl.store(y_ptr + i, (bits >> 16).to(tl.uint16).to(tl.bfloat16, bitcast=True))


torch.manual_seed(0)
x = torch.randn(N, device="cuda")
y = torch.empty(N, device="cuda", dtype=torch.bfloat16)

stochastic_round[(N // 4096,)](x, y, 1234, BLOCK=512, num_warps=4)

torch.testing.assert_close(y.float(), x, rtol=2**-7, atol=0.0)
error = (y.float() - x) / x.abs().clamp(min=1e-30)
torch.testing.assert_close(error.mean().item(), 0.0, rtol=0.0, atol=10 * 2**-8 * N**-0.5)
