"""Keys and values of new tokens written to their slots in the cache."""

import torch
import triton
import triton.language as tl

TOKENS = 16384
SLOTS = 32768
HEADS = 8
DIM = 128


@triton.jit
def kv_cache_write(k_ptr, v_ptr, slot_ptr, k_cache_ptr, v_cache_ptr, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = token[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    target = tl.load(slot_ptr + token)[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    k = tl.load(k_ptr + source)
    v = tl.load(v_ptr + source)
    tl.store(k_cache_ptr + target, k)
    tl.store(v_cache_ptr + target, v)


torch.manual_seed(0)
k = torch.randn(TOKENS, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
v = torch.randn(TOKENS, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
slots = torch.randperm(SLOTS, device="cuda")[:TOKENS].int()
k_cache = torch.zeros(SLOTS, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
v_cache = torch.zeros_like(k_cache)

kv_cache_write[(TOKENS // 4,)](k, v, slots, k_cache, v_cache, WIDTH=HEADS * DIM, BLOCK=4, num_warps=4)

torch.testing.assert_close(k_cache[slots.long()], k)
torch.testing.assert_close(v_cache[slots.long()], v)
