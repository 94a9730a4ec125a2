"""Keys that decay along a chunk are computed in float32, and the product with a narrow tile is of that precision."""

import torch
import triton
import triton.language as tl


@triton.jit
def decayed(a, k, decay, out, columns, chunks, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    rows, cols = tl.arange(0, ROWS), tl.arange(0, WIDTH)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    for chunk in range(chunks):
        at = (tl.program_id(0) * chunks + chunk) * ROWS + rows
        tile = tl.load(a + at[:, None] * ROWS + rows[None, :])
        keys = tl.load(k + at[:, None] * columns + cols[None, :]) * tl.exp2(tl.load(decay + at))[:, None]
        acc += tl.dot(tile.to(tl.float32), keys)
    tl.store(out + (tl.program_id(0) * ROWS + rows)[:, None] * columns + cols[None, :], acc)


n, chunks = 4096, 8
a = torch.randn(n * chunks * 64, 64, device="cuda", dtype=torch.bfloat16)
k = torch.randn(n * chunks * 64, 64, device="cuda", dtype=torch.bfloat16)
decay = torch.rand(n * chunks * 64, device="cuda")
out = torch.empty(n * 64, 64, device="cuda")
decayed[(n,)](a, k, decay, out, 64, chunks, 64, 64)
keys = (k * decay.exp2()[:, None]).view(n, chunks, 64, 64)
expected = (a.view(n, chunks, 64, 64).float() @ keys).sum(1).view(n * 64, 64)
torch.testing.assert_close(out, expected, rtol=0.01, atol=0.2)
