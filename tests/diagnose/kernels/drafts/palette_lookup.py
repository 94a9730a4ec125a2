"""Expands an image of 8-bit palette indices to 32-bit colours.

Fault: the palette changes from frame to frame, and for fear of a stale copy it is read with volatile loads. Those pass
the L1 cache by: every lookup of a table of 1 KB goes to L2, a sector of 32 bytes for a colour of 4.
Fix: plain loads; a kernel's launch sees what was written before it, and the table stays in L1.
"""

import torch
import triton
import triton.language as tl

HEIGHT = 8192
WIDTH = 8192


@triton.jit
def palette_lookup(index_ptr, palette_ptr, colour_ptr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    index = tl.load(index_ptr + i).to(tl.int32)
    colour = tl.load(palette_ptr + index, volatile=True)  # planted: redundant-load
    tl.store(colour_ptr + i, colour)


torch.manual_seed(0)
index = torch.randint(0, 256, (HEIGHT, WIDTH), device="cuda", dtype=torch.uint8)
palette = torch.randint(0, 2**31 - 1, (256,), device="cuda", dtype=torch.int32)
colour = torch.empty(HEIGHT, WIDTH, device="cuda", dtype=torch.int32)

palette_lookup[(HEIGHT * WIDTH // 2048,)](index, palette, colour, BLOCK=2048, num_warps=4)

torch.testing.assert_close(colour, palette[index.int()])
