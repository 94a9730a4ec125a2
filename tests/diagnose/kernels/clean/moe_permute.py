"""Copy each token's row to its places in the order of experts, two places a token, and its routing weights along.

A token's row is read once and written twice; the places are scattered, but each is a whole row of 8 KB.
"""

import torch
import triton
import triton.language as tl

TOKENS = 16384
WIDTH = 4096
EXPERTS = 64


@triton.jit
def moe_permute(x_ptr, place_ptr, weight_ptr, y_ptr, y_weight_ptr, WIDTH: tl.constexpr, TOP: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, WIDTH)
    row = tl.load(x_ptr + token * WIDTH + cols)
    for choice in tl.static_range(TOP):
        place = tl.load(place_ptr + token * TOP + choice).to(tl.int64)
        tl.store(y_ptr + place * WIDTH + cols, row)
        tl.store(y_weight_ptr + place, tl.load(weight_ptr + token * TOP + choice))


torch.manual_seed(0)
x = torch.randn(TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
weight, expert = torch.rand(TOKENS, EXPERTS, device="cuda").topk(2, dim=1)
order = expert.flatten().argsort(stable=True)
place = torch.empty_like(order)
place[order] = torch.arange(2 * TOKENS, device="cuda")
place = place.int()
y = torch.empty(2 * TOKENS, WIDTH, device="cuda", dtype=torch.bfloat16)
y_weight = torch.empty(2 * TOKENS, device="cuda")

moe_permute[(TOKENS,)](x, place, weight, y, y_weight, WIDTH=WIDTH, TOP=2, num_warps=4)

torch.testing.assert_close(y.float(), x[order // 2].float())
torch.testing.assert_close(y_weight, weight.flatten()[order])
