"""Change of base of a residue number system, as in homomorphic encryption: 24 primes to 8, all below 2^28.

Fault: the sum of 24 products is reduced after each of them with a 64-bit remainder by a prime that is not known when
the kernel is compiled, 70 instructions and more each, 201 million of them; the data are 134 MB, 40 us.
Fix: the products are below 2^56, so all 24 fit in 64 bits: sum them and take one remainder at the end.
"""

import torch
import triton
import triton.language as tl

SOURCE = 24
TARGET = 8
LENGTH = 1048576


@triton.jit
def rns_base_convert(
    a_ptr, weight_ptr, prime_ptr, out_ptr, LENGTH, SOURCE: tl.constexpr, TARGET: tl.constexpr, BLOCK: tl.constexpr
):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    j = tl.arange(0, TARGET)
    prime = tl.load(prime_ptr + j).to(tl.int64)
    acc = tl.zeros((TARGET, BLOCK), tl.int64)
    for i in range(SOURCE):
        a = tl.load(a_ptr + i * LENGTH + n).to(tl.int64)
        weight = tl.load(weight_ptr + i * TARGET + j).to(tl.int64)
        acc = (acc + weight[:, None] * a[None, :]) % prime[:, None]  # planted: loop-division
    tl.store(out_ptr + j[:, None] * LENGTH + n[None, :], acc.to(tl.int32))


torch.manual_seed(0)
top = 2**28
prime = torch.tensor([top - k for k in (57, 89, 95, 119, 125, 143, 165, 183)], device="cuda", dtype=torch.int32)
a = torch.randint(0, top - 200, (SOURCE, LENGTH), device="cuda", dtype=torch.int32)
weight = torch.randint(0, top - 200, (SOURCE, TARGET), device="cuda", dtype=torch.int32)
out = torch.empty(TARGET, LENGTH, device="cuda", dtype=torch.int32)

rns_base_convert[(LENGTH // 256,)](a, weight, prime, out, LENGTH, SOURCE=SOURCE, TARGET=TARGET, BLOCK=256, num_warps=4)

for j in range(TARGET):
    want = torch.zeros(LENGTH, device="cuda", dtype=torch.int64)
    for i in range(SOURCE):
        want += a[i].long() * int(weight[i, j])
    torch.testing.assert_close(out[j], (want % int(prime[j])).int())
