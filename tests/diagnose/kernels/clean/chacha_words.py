"""Random words from the ChaCha20 block function, one counter a block; word k of all blocks lies together.

Twenty rounds are 960 integer operations a block in registers, with full warps and stores that are in order: the integer
units set the time, and the 67 MB written hide behind them.
"""

import torch
import triton
import triton.language as tl

BLOCKS = 1 << 20


@triton.jit
def rotate(x, by: tl.constexpr):
    return (x << by) | (x >> (32 - by))


@triton.jit
def quarter(a, b, c, d):
    a += b
    d = rotate(d ^ a, 16)
    c += d
    b = rotate(b ^ c, 12)
    a += b
    d = rotate(d ^ a, 8)
    c += d
    b = rotate(b ^ c, 7)
    return a, b, c, d


@triton.jit
def chacha_words(start_ptr, out_ptr, blocks, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    zero = tl.zeros((BLOCK,), tl.uint32)
    s = ()
    for k in tl.static_range(16):
        s = s + (zero + tl.load(start_ptr + k).to(tl.uint32, bitcast=True),)  # noqa: RUF005
    counter = s[12] + i.to(tl.uint32)
    x0, x1, x2, x3, x4, x5, x6, x7 = s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7]
    x8, x9, x10, x11, x12, x13, x14, x15 = s[8], s[9], s[10], s[11], counter, s[13], s[14], s[15]
    for _ in range(10):
        x0, x4, x8, x12 = quarter(x0, x4, x8, x12)
        x1, x5, x9, x13 = quarter(x1, x5, x9, x13)
        x2, x6, x10, x14 = quarter(x2, x6, x10, x14)
        x3, x7, x11, x15 = quarter(x3, x7, x11, x15)
        x0, x5, x10, x15 = quarter(x0, x5, x10, x15)
        x1, x6, x11, x12 = quarter(x1, x6, x11, x12)
        x2, x7, x8, x13 = quarter(x2, x7, x8, x13)
        x3, x4, x9, x14 = quarter(x3, x4, x9, x14)
    x = (x0, x1, x2, x3, x4, x5, x6, x7, x8, x9, x10, x11, x12, x13, x14, x15)
    for k in tl.static_range(16):
        word = x[k] + (counter if k == 12 else s[k])
        tl.store(out_ptr + k * blocks + i, word.to(tl.int32, bitcast=True))


torch.manual_seed(0)
start = torch.randint(-(2**31), 2**31, (16,), device="cuda", dtype=torch.int32)
out = torch.empty(16, BLOCKS, device="cuda", dtype=torch.int32)

chacha_words[(BLOCKS // 256,)](start, out, BLOCKS, BLOCK=256, num_warps=4)

mask = 2**32 - 1
state = (start.long() & mask)[:, None].repeat(1, BLOCKS)
state[12] = (state[12] + torch.arange(BLOCKS, device="cuda")) & mask
x = list(state)
for turn in range(80):
    column, shift = turn % 4, 0 if turn % 8 < 4 else 1
    a, b, c, d = (4 * row + (column + shift * row) % 4 for row in range(4))
    for left, right, by in ((a, d, 16), (c, b, 12), (a, d, 8), (c, b, 7)):
        x[left] = (x[left] + x[b if left == a else d]) & mask
        mixed = x[right] ^ x[left]
        x[right] = ((mixed << by) | (mixed >> (32 - by))) & mask
want = (torch.stack(x) + state) & mask
torch.testing.assert_close(out.long() & mask, want)
