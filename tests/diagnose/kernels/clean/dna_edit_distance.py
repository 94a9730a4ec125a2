"""Edit distance of three million pairs of DNA reads, 32 against 64 bases, by the bit-parallel method of Myers.

A lane has a pair; the bases lie position by position, so that the lanes of a warp read bytes next to each other. A
column of the table of distances is two words of 32 bits, and a step of the loop, which needs the step before it, some
20 operations on them.
"""

import torch
import triton
import triton.language as tl

PAIRS = 3145728
SHORT = 32
LONG = 64


@triton.jit
def dna_edit_distance(
    short_ptr, long_ptr, out_ptr, PAIRS, SHORT: tl.constexpr, LONG: tl.constexpr, BLOCK: tl.constexpr
):
    pair = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    is_a = tl.zeros((BLOCK,), tl.int32)
    is_c = tl.zeros((BLOCK,), tl.int32)
    is_g = tl.zeros((BLOCK,), tl.int32)
    for i in range(SHORT):
        base = tl.load(short_ptr + i * PAIRS + pair)
        is_a |= (base == 0).to(tl.int32) << i
        is_c |= (base == 1).to(tl.int32) << i
        is_g |= (base == 2).to(tl.int32) << i
    is_t = ~(is_a | is_c | is_g)
    up = tl.full((BLOCK,), -1, tl.int32)
    down = tl.zeros((BLOCK,), tl.int32)
    distance = tl.full((BLOCK,), SHORT, tl.int32)
    for i in range(LONG):
        base = tl.load(long_ptr + i * PAIRS + pair)
        equal = tl.where(base == 0, is_a, tl.where(base == 1, is_c, tl.where(base == 2, is_g, is_t)))
        vertical = equal | down
        horizontal = (((equal & up) + up) ^ up) | equal
        more = down | ~(horizontal | up)
        less = up & horizontal
        distance += (more < 0).to(tl.int32) - (less < 0).to(tl.int32)
        more = (more << 1) | 1
        less = less << 1
        up = less | ~(vertical | more)
        down = more & vertical
    tl.store(out_ptr + pair, distance)


torch.manual_seed(0)
short = torch.randint(0, 4, (SHORT, PAIRS), device="cuda", dtype=torch.uint8)
long = torch.randint(0, 4, (LONG, PAIRS), device="cuda", dtype=torch.uint8)
out = torch.empty(PAIRS, device="cuda", dtype=torch.int32)

dna_edit_distance[(PAIRS // 512,)](short, long, out, PAIRS, SHORT=SHORT, LONG=LONG, BLOCK=512, num_warps=4)

column = [torch.full((PAIRS,), i, device="cuda", dtype=torch.int32) for i in range(SHORT + 1)]
for j in range(LONG):
    diagonal = column[0]
    column[0] = column[0] + 1
    for i in range(1, SHORT + 1):
        change = diagonal + (short[i - 1] != long[j]).int()
        diagonal = column[i]
        column[i] = torch.minimum(change, torch.minimum(column[i], column[i - 1]) + 1)
torch.testing.assert_close(out, column[SHORT])
