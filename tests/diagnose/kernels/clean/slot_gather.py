"""Gather rows of a large cache by slot number: the table has 2.4e9 elements, so row offsets need int64.
Random rows of 256 bytes are the unit of access, each read in one piece by neighbouring lanes."""

import torch
import triton
import triton.language as tl

NSLOTS, D = 19_000_000, 128
NREQ = 1_000_000


@triton.jit
def gather_kernel(table_ptr, slot_ptr, out_ptr, n, D: tl.constexpr, ROWS: tl.constexpr):
    r = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    d = tl.arange(0, D)
    live = r < n
    slot = tl.load(slot_ptr + r, mask=live, other=0).to(tl.int64)
    x = tl.load(table_ptr + slot[:, None] * D + d[None, :], mask=live[:, None], other=0.0)
    tl.store(out_ptr + r[:, None] * D + d[None, :], x, mask=live[:, None])


torch.manual_seed(0)
table = torch.empty(NSLOTS, D, device="cuda", dtype=torch.bfloat16).normal_()
slots = torch.randint(0, NSLOTS, (NREQ,), device="cuda", dtype=torch.int32)
out = torch.empty(NREQ, D, device="cuda", dtype=torch.bfloat16)

gather_kernel[(triton.cdiv(NREQ, 32),)](table, slots, out, NREQ, D, ROWS=32, num_warps=4)

torch.testing.assert_close(out, table[slots.long()], rtol=0, atol=0)
