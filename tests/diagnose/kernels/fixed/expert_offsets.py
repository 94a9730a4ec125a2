"""Where the tokens of each expert begin: the exclusive sums of each chunk's counts, by a scan."""

import torch
import triton
import triton.language as tl


@triton.jit
def offsets(counts_ptr, out_ptr, E: tl.constexpr):
    e = tl.arange(0, E)
    chunk = tl.program_id(0)
    counts = tl.load(counts_ptr + chunk * E + e)
    begins = tl.cumsum(counts, 0) - counts
    tl.store(out_ptr + chunk * E + e, begins)


counts = torch.randint(0, 64, (65536, 128), device="cuda", dtype=torch.int32)
out = torch.empty_like(counts)
offsets[(65536,)](counts, out, 128, num_warps=4)
torch.testing.assert_close(out.long(), torch.cumsum(counts, 1) - counts)
