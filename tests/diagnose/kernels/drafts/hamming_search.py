"""Hamming distances between 32 binary codes of 256 bits and a database of 524288 of them.

Fault: the bits of a word are counted one at a time: a shift, a mask and a sum for each of 32 bits of 134 M words,
13 G integer operations, about 0.9 ms of the whole device; reading and writing take under 20 us.
Fix: the hardware counts the bits of a word with one instruction.
"""

import torch
import triton
import triton.language as tl

QUERIES = 32
CODES = 524288
WORDS = 8


@triton.jit
def hamming_search(
    query_ptr, code_ptr, out_ptr, codes, WORDS: tl.constexpr, QUERY_TILE: tl.constexpr, BLOCK: tl.constexpr
):
    q = tl.program_id(1) * QUERY_TILE + tl.arange(0, QUERY_TILE)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    count = tl.zeros((QUERY_TILE, BLOCK), tl.int32)
    for word in range(WORDS):
        code = tl.load(code_ptr + word * codes + i)
        differ = tl.load(query_ptr + q * WORDS + word)[:, None] ^ code[None, :]
        for bit in range(32):  # planted: bit-loop
            count += (differ >> bit) & 1
    tl.store(out_ptr + q[:, None] * codes + i[None, :], count.to(tl.int16))


torch.manual_seed(0)
queries = torch.randint(-(2**31), 2**31, (QUERIES, WORDS), device="cuda", dtype=torch.int32)
codes = torch.randint(-(2**31), 2**31, (WORDS, CODES), device="cuda", dtype=torch.int32)
out = torch.empty(QUERIES, CODES, device="cuda", dtype=torch.int16)

hamming_search[(CODES // 512, QUERIES // 8)](
    queries, codes, out, CODES, WORDS=WORDS, QUERY_TILE=8, BLOCK=512, num_warps=4
)

shift = torch.arange(32, device="cuda", dtype=torch.int32)
bits_q = ((queries[:, :, None] >> shift) & 1).reshape(QUERIES, -1).float()
bits_c = ((codes[:, None, :] >> shift[:, None]) & 1).reshape(-1, CODES).float()
want = bits_q.sum(1)[:, None] + bits_c.sum(0)[None, :] - 2.0 * (bits_q @ bits_c)
torch.testing.assert_close(out.float(), want, rtol=0, atol=0.01)
