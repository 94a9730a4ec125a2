"""Reorders the key cache after a step of beam search: 64 beams, 8 heads, 2048 tokens, 128 wide, bf16.

A program copies 64 tokens of a head.
"""

import torch
import triton
import triton.language as tl

BEAMS = 64
HEADS = 8
TOKENS = 2048
DIM = 128


@triton.jit
def beam_kv_reorder(cache_ptr, parent_ptr, out_ptr, HEADS, TOKENS, DIM: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)[:, None]
    head = tl.program_id(1)
    beam = tl.program_id(2)
    parent = tl.load(parent_ptr + beam).to(tl.int64)
    d = tl.arange(0, DIM)[None, :]
    key = tl.load(cache_ptr + ((parent * HEADS + head) * TOKENS + token) * DIM + d)
    tl.store(out_ptr + ((beam.to(tl.int64) * HEADS + head) * TOKENS + token) * DIM + d, key)


torch.manual_seed(0)
cache = torch.randn(BEAMS, HEADS, TOKENS, DIM, device="cuda", dtype=torch.bfloat16)
parent = torch.randint(0, BEAMS, (BEAMS,), device="cuda", dtype=torch.int32)
out = torch.empty_like(cache)

beam_kv_reorder[(TOKENS // 64, HEADS, BEAMS)](cache, parent, out, HEADS, TOKENS, DIM=DIM, BLOCK=64, num_warps=4)

torch.testing.assert_close(out, cache[parent.long()], rtol=0, atol=0)
