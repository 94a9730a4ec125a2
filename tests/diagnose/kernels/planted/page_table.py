"""Sums over pages whose numbers are read one by one, each before its page."""

import torch
import triton
import triton.language as tl


@triton.jit
def page_sums(pool, table, lengths, out, most, D: tl.constexpr, PAGE: tl.constexpr):
    sequence = tl.program_id(0)
    rows, d = tl.arange(0, PAGE), tl.arange(0, D)
    total = tl.zeros((PAGE, D), tl.float32)
    i = 0
    while i < tl.load(lengths + sequence):
        page = tl.load(table + sequence * most + i)
        total += tl.load(pool + (page * PAGE + rows)[:, None] * D + d[None, :])  # planted: loads-not-pipelined
        i += 1
    tl.store(out + sequence * D + d, tl.sum(total, 0))


pool = torch.randn(4096, 16, 128, device="cuda", dtype=torch.bfloat16)
table = torch.randint(0, 4096, (1024, 256), device="cuda", dtype=torch.int32)
lengths = torch.full((1024,), 250, device="cuda", dtype=torch.int32)
out = torch.empty(1024, 128, device="cuda")
page_sums[(1024,)](pool, table, lengths, out, 256, 128, 16)
expected = pool.sum(1, dtype=torch.float32)[table[:, :250].long()].sum(1)
torch.testing.assert_close(out, expected, rtol=1e-2, atol=0.1)
