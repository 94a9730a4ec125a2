"""Threads of a CTA exchange numbers through memory: without the barriers a thread reads what another has not written."""

import torch
import triton
import triton.language as tl


@triton.jit
def butterflies(x, y, scratch, STAGES: tl.constexpr, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, WIDTH)[None, :]
    values = tl.load(x + row * WIDTH + column)
    for stage in range(STAGES):
        tl.store(scratch + row * WIDTH + column, values)
        tl.debug_barrier()
        partner = tl.load(scratch + row * WIDTH + (column ^ (1 << stage)))
        tl.debug_barrier()
        values = tl.where((column & (1 << stage)) == 0, values + partner, partner - values)
    tl.store(y + row * WIDTH + column, values)


x = torch.randn(65536, 128, device="cuda")
y, scratch = torch.empty_like(x), torch.empty_like(x)
butterflies[(65536 // 16,)](x, y, scratch, 7, 16, 128)
expected = x
for stage in range(7):
    low, high = expected.view(65536, -1, 2, 1 << stage).unbind(2)
    expected = torch.stack((low + high, low - high), 2).view(65536, 128)
torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-4)
