"""Second-order pooling of sets: the 16 x 16 products of the features of 1024 members, for each of 4096 sets.

The product is too low for wgmma and its tiles are small, but each set is read once, by a program of one warp, some
twenty of them on a multiprocessor with 4 KB each on the way: the 268 MB of the sets are all there is to wait for.
"""

import torch
import triton
import triton.language as tl

SETS = 4096
MEMBERS = 1024
WIDTH = 16


@triton.jit
def second_order_pool(x_ptr, out_ptr, MEMBERS: tl.constexpr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    which = tl.program_id(0)
    c = tl.arange(0, WIDTH)
    acc = tl.zeros((WIDTH, WIDTH), tl.float32)
    for start in range(0, MEMBERS, BLOCK):
        i = which * MEMBERS + start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + i[:, None] * WIDTH + c[None, :])
        acc = tl.dot(tl.trans(x), x, acc)
    tl.store(out_ptr + which * WIDTH * WIDTH + c[:, None] * WIDTH + c[None, :], acc * (1.0 / MEMBERS))


torch.manual_seed(0)
x = torch.randn(SETS, MEMBERS, WIDTH, device="cuda")
out = torch.empty(SETS, WIDTH, WIDTH, device="cuda")

second_order_pool[(SETS,)](x, out, MEMBERS=MEMBERS, WIDTH=WIDTH, BLOCK=64, num_warps=1)

torch.testing.assert_close(out, x.transpose(1, 2) @ x / MEMBERS, rtol=1e-2, atol=1e-2)
