"""Mean pooling of jagged sequences, [total, D] bf16 with offsets, one program per sequence and column block.
The loop runs to the sequence's own length and masks only its ragged end."""

import torch
import triton
import triton.language as tl

NSEQ, D, MEAN_LEN = 4096, 512, 96


@triton.jit
def pool_kernel(x_ptr, offset_ptr, out_ptr, D: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr):
    seq = tl.program_id(0)
    rc = tl.program_id(1) * COLS + tl.arange(0, COLS)
    lo = tl.load(offset_ptr + seq)
    hi = tl.load(offset_ptr + seq + 1)
    acc = tl.zeros((ROWS, COLS), tl.float32)
    for i in range(lo, hi, ROWS):
        rr = i + tl.arange(0, ROWS)
        x = tl.load(x_ptr + rr[:, None] * D + rc[None, :], mask=rr[:, None] < hi, other=0.0)
        acc += x.to(tl.float32)
    count = tl.maximum(hi - lo, 1).to(tl.float32)
    tl.store(out_ptr + seq * D + rc, tl.sum(acc, axis=0) / count)


torch.manual_seed(0)
lens = torch.randint(1, 2 * MEAN_LEN, (NSEQ,), device="cuda")
offsets = torch.cat((torch.zeros(1, dtype=torch.int64, device="cuda"), lens.cumsum(0)))
x = torch.randn(int(offsets[-1]), D, device="cuda", dtype=torch.bfloat16)
out = torch.empty(NSEQ, D, device="cuda")

pool_kernel[(NSEQ, D // 256)](x, offsets, out, D, ROWS=16, COLS=256, num_warps=4)

seq_of = torch.repeat_interleave(torch.arange(NSEQ, device="cuda"), lens)
ref = torch.zeros_like(out).index_add_(0, seq_of, x.float()) / lens[:, None]
torch.testing.assert_close(out, ref, rtol=1e-4, atol=1e-4)
