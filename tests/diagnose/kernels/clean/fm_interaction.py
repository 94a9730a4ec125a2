"""Second-order term of a factorisation machine: 32 fields with vectors of 16 values for each of 65536 samples.

The 134 MB of vectors are read once, and both sums over the fields are taken from registers: bound by memory.
"""

import torch
import triton
import triton.language as tl

BATCH = 65536
FIELDS = 32
DIM = 16


@triton.jit
def fm_interaction(x_ptr, out_ptr, FIELDS: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr):
    sample = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    field = tl.arange(0, FIELDS)[None, :, None]
    at = (sample[:, None, None] * FIELDS + field) * DIM + tl.arange(0, DIM)[None, None, :]
    x = tl.load(x_ptr + at)
    total = tl.sum(x, axis=1)
    tl.store(out_ptr + sample, 0.5 * tl.sum(total * total - tl.sum(x * x, axis=1), axis=1))


torch.manual_seed(0)
x = torch.randn(BATCH, FIELDS, DIM, device="cuda")
out = torch.empty(BATCH, device="cuda")

fm_interaction[(BATCH // 8,)](x, out, FIELDS=FIELDS, DIM=DIM, BLOCK=8, num_warps=4)

want = 0.5 * (x.sum(1) ** 2 - (x * x).sum(1)).sum(1)
torch.testing.assert_close(out, want, rtol=1e-3, atol=1e-2)
