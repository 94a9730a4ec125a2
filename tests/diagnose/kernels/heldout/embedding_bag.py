"""Embedding bag (sum) with jagged bags over a table of two million 128-wide fp16 rows.
Fault: the loop takes the bag's rows one at a time; each step is an index load followed by the row load that needs it,
256 bytes in flight a warp, so the kernel waits on DRAM latency. Fix: take 16 rows per step, with a vector of indices
and a [16, 128] tile, and sum over the tile's rows at the end."""

import torch
import triton
import triton.language as tl

NROWS, D = 2_000_000, 128
NBAGS, MEAN_LEN = 16384, 64


@triton.jit
def bag_kernel(table_ptr, idx_ptr, offset_ptr, out_ptr, D: tl.constexpr, ROWS: tl.constexpr):
    bag = tl.program_id(0)
    lo = tl.load(offset_ptr + bag)
    hi = tl.load(offset_ptr + bag + 1)
    rd = tl.arange(0, D)
    acc = tl.zeros((D,), tl.float32)
    for i in range(lo, hi):
        idx = tl.load(idx_ptr + i)
        acc += tl.load(table_ptr + idx * D + rd).to(tl.float32)  # planted: few-bytes-in-flight
    tl.store(out_ptr + bag * D + rd, acc)


torch.manual_seed(0)
lens = torch.randint(MEAN_LEN // 2, MEAN_LEN * 3 // 2 + 1, (NBAGS,), device="cuda")
offsets = torch.cat((torch.zeros(1, dtype=torch.int64, device="cuda"), lens.cumsum(0)))
indices = torch.randint(0, NROWS, (int(offsets[-1]),), device="cuda")
table = torch.randn(NROWS, D, device="cuda", dtype=torch.float16)
out = torch.empty(NBAGS, D, device="cuda")

bag_kernel[(NBAGS,)](table, indices, offsets, out, D, ROWS=16, num_warps=1)

bag_of = torch.repeat_interleave(torch.arange(NBAGS, device="cuda"), lens)
ref = torch.zeros_like(out).index_add_(0, bag_of, table[indices].float())
torch.testing.assert_close(out, ref, rtol=1e-4, atol=1e-3)
