"""MinHash signatures for finding near-duplicate documents: the least (a x + b) mod p over a document's shingles x, for
HASHES pairs of a and b, with p = 2^31 - 1.

Fault: the 64-bit sum is reduced with % by a modulus that is only known at run time: a division routine of some 80
instructions for each shingle and hash, while everything else takes less than ten.
Fix: p is a Mersenne prime, so 2^31 = 1 (mod p): add the high part to the low one twice, and subtract p at most once.
"""

import torch
import triton
import triton.language as tl

DOCUMENTS = 16384
SHINGLES = 256
HASHES = 128
PRIME = 2**31 - 1


@triton.jit
def minhash_signature(shingle_ptr, a_ptr, b_ptr, signature_ptr, prime, SHINGLES: tl.constexpr, HASHES: tl.constexpr):
    document = tl.program_id(0)
    h = tl.arange(0, HASHES)
    a = tl.load(a_ptr + h).to(tl.int64)
    b = tl.load(b_ptr + h).to(tl.int64)
    least = tl.full((HASHES,), 2**31 - 1, tl.int32)
    for j in range(SHINGLES):
        x = tl.load(shingle_ptr + document * SHINGLES + j)
        hashed = (a * x + b) % prime  # planted: loop-division
        least = tl.minimum(least, hashed.to(tl.int32))
    tl.store(signature_ptr + document * HASHES + h, least)


torch.manual_seed(0)
shingle = torch.randint(0, PRIME, (DOCUMENTS, SHINGLES), device="cuda", dtype=torch.int32)
a = torch.randint(1, PRIME, (HASHES,), device="cuda", dtype=torch.int32)
b = torch.randint(0, PRIME, (HASHES,), device="cuda", dtype=torch.int32)
signature = torch.empty(DOCUMENTS, HASHES, device="cuda", dtype=torch.int32)

minhash_signature[(DOCUMENTS,)](shingle, a, b, signature, PRIME, SHINGLES=SHINGLES, HASHES=HASHES, num_warps=4)

want = torch.empty_like(signature)
for h in range(HASHES):
    want[:, h] = ((shingle.long() * a[h].long() + b[h].long()) % PRIME).amin(1)
torch.testing.assert_close(signature, want)
