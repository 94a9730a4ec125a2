"""Polynomial fingerprint modulo 2^32 of each of 262144 documents of 128 words, to find duplicates."""

import torch
import triton
import triton.language as tl

ROWS = 262144
WORDS = 128
PRIME = 16777619


@triton.jit
def fingerprint(x_ptr, power_ptr, out_ptr, WORDS: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.arange(0, WORDS)
    x = tl.load(x_ptr + row[:, None] * WORDS + word[None, :])
    tl.store(out_ptr + row, tl.sum(x * tl.load(power_ptr + word)[None, :], axis=1))


torch.manual_seed(0)
x = torch.randint(-(2**31), 2**31, (ROWS, WORDS), device="cuda", dtype=torch.int32)
out = torch.empty(ROWS, device="cuda", dtype=torch.int32)

powers = [pow(PRIME, WORDS - 1 - word, 2**32) for word in range(WORDS)]
powers = torch.tensor(powers, device="cuda").to(torch.int32)
fingerprint[(ROWS // 32,)](x, powers, out, WORDS=WORDS, BLOCK=32, num_warps=4)

want = torch.zeros(ROWS, device="cuda", dtype=torch.int32)
for word in range(WORDS):
    want = want * PRIME + x[:, word]
torch.testing.assert_close(out, want)
