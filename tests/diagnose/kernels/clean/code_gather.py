"""Rows of 128 bytes from a store of 20 million, in any order, turned to fp16 with a scale for each row.

The store has more than 2^31 bytes, so that the offsets of its rows do need 64 bits. A row is one line of memory, and a
program asks for 32 of them at once.
"""

import torch
import triton
import triton.language as tl

STORED = 20000000
ASKED = 524288
WIDTH = 128


@triton.jit
def code_gather(row_ptr, code_ptr, scale_ptr, out_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    c = tl.arange(0, WIDTH)
    row = tl.load(row_ptr + i)
    scale = tl.load(scale_ptr + row)
    code = tl.load(code_ptr + row.to(tl.int64)[:, None] * WIDTH + c[None, :])
    value = (code.to(tl.float32) - 128.0) * scale[:, None]
    tl.store(out_ptr + i[:, None] * WIDTH + c[None, :], value.to(tl.float16))


torch.manual_seed(0)
code = torch.randint(0, 256, (STORED, WIDTH), device="cuda", dtype=torch.uint8)
scale = torch.rand(STORED, device="cuda")
row = torch.randint(0, STORED, (ASKED,), device="cuda", dtype=torch.int32)
out = torch.empty(ASKED, WIDTH, device="cuda", dtype=torch.float16)

code_gather[(ASKED // 32,)](row, code, scale, out, WIDTH=WIDTH, BLOCK=32, num_warps=4)

for part in range(0, ASKED, 65536):
    which = row[part : part + 65536].long()
    want = (code[which].float() - 128) * scale[which][:, None]
    torch.testing.assert_close(out[part : part + 65536].float(), want, rtol=2e-3, atol=2e-3)
