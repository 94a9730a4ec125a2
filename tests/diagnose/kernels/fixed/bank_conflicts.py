"""A transposition through a buffer with a swizzle."""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def transpose(x, y, n, BLOCK: gl.constexpr):
    rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0])
    columns: gl.constexpr = gl.BlockedLayout([1, 1], [32, 1], [1, 4], [0, 1])
    i = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, rows))
    j = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, rows))
    tile = gl.load(x + i[:, None] * n + j[None, :])
    buffer = gl.allocate_shared_memory(gl.float32, [BLOCK, BLOCK], gl.SwizzledSharedLayout(1, 1, 32, [1, 0]))
    buffer.store(tile)
    turned = buffer.load(columns)
    p = gl.program_id(0) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(1, columns))
    q = gl.program_id(1) * BLOCK + gl.arange(0, BLOCK, gl.SliceLayout(0, columns))
    gl.store(y + q[None, :] * n + p[:, None], turned)


x = torch.randn(8192, 8192, device="cuda")
y = torch.empty_like(x)
transpose[(128, 128)](x, y, 8192, 64, num_warps=4)
assert torch.equal(y, x.T)
