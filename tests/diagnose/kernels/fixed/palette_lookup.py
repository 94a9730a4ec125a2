"""Expands an image of 8-bit palette indices to 32-bit colours."""

import torch
import triton
import triton.language as tl

HEIGHT = 8192
WIDTH = 8192


@triton.jit
def palette_lookup(index_ptr, palette_ptr, colour_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + i).to(tl.int32)
    colour = tl.load(palette_ptr + index)
    tl.store(colour_ptr + i, colour)


torch.manual_seed(0)
index = torch.randint(0, 256, (HEIGHT, WIDTH), device="cuda", dtype=torch.uint8)
palette = torch.randint(0, 2**31 - 1, (256,), device="cuda", dtype=torch.int32)
colour = torch.empty(HEIGHT, WIDTH, device="cuda", dtype=torch.int32)

palette_lookup[(HEIGHT * WIDTH // 2048,)](index, palette, colour, BLOCK=2048, num_warps=4)

torch.testing.assert_close(colour, palette[index.int()])
