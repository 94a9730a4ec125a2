"""Attention of 16 drafted tokens in a tree over a cache of 8192 keys: 16 requests, 64 heads on 8 of the cache, bf16.

Fault: a program per query head. The eight heads that share a head of the cache each load all its keys and values:
8 x 537 MB are 4.3 GB, mostly out of L2, some 0.8 ms and more; the cache is worth 160 us from memory once. The products
have 16 rows, a quarter of what the wide instructions of the tensor cores take.
Fix: a program per head of the cache, with the 8 x 16 rows of its query heads as one tile of 128 rows.
"""

import torch
import triton
import triton.language as tl

REQUESTS = 16
HEADS = 64
KV_HEADS = 8
KEYS = 8192
TREE = 16
DIM = 128


@triton.jit
def attend(q, k_ptr, v_ptr, at, keep, top, total, acc, DIM: tl.constexpr, BLOCK_N: tl.constexpr):
    rn = at + tl.arange(0, BLOCK_N)
    rd = tl.arange(0, DIM)
    k = tl.load(k_ptr + rn[:, None] * DIM + rd[None, :])
    s = tl.where(keep, tl.dot(q, k.T), -1.0e30)  # planted: wgmma-unused
    new_top = tl.maximum(top, tl.max(s, axis=1))
    p = tl.exp2(s - new_top[:, None])
    fade = tl.exp2(top - new_top)
    total = total * fade + tl.sum(p, axis=1)
    v = tl.load(v_ptr + rn[:, None] * DIM + rd[None, :])
    acc = tl.dot(p.to(tl.bfloat16), v, acc * fade[:, None])
    return new_top, total, acc


@triton.jit
def tree_attention(
    q_ptr,
    k_ptr,
    v_ptr,
    tree_ptr,
    out_ptr,
    scale,
    HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    KEYS: tl.constexpr,
    TREE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    head = tl.program_id(0)
    request = tl.program_id(1)
    token = tl.arange(0, TREE)
    rd = tl.arange(0, DIM)
    at = ((request * TREE + token) * HEADS + head)[:, None] * DIM + rd[None, :]
    q = (tl.load(q_ptr + at) * scale).to(tl.bfloat16)
    cache = (request * KV_HEADS + head // (HEADS // KV_HEADS)).to(tl.int64) * KEYS * DIM
    k_ptr += cache
    v_ptr += cache
    top = tl.full((TREE,), -1.0e30, tl.float32)
    total = tl.zeros((TREE,), tl.float32)
    acc = tl.zeros((TREE, DIM), tl.float32)
    for start in range(0, KEYS - BLOCK_N, BLOCK_N):
        top, total, acc = attend(q, k_ptr, v_ptr, start, True, top, total, acc, DIM, BLOCK_N)
    drafted = tl.arange(0, BLOCK_N) - (BLOCK_N - TREE)
    parent = tl.load(tree_ptr + token[:, None] * TREE + drafted[None, :], mask=(drafted >= 0)[None, :], other=1)
    top, total, acc = attend(q, k_ptr, v_ptr, KEYS - BLOCK_N, parent != 0, top, total, acc, DIM, BLOCK_N)
    tl.store(out_ptr + at, (acc / total[:, None]).to(tl.bfloat16))


torch.manual_seed(0)
q = torch.randn(REQUESTS, TREE, HEADS, DIM, device="cuda", dtype=torch.bfloat16)
k = torch.randn(REQUESTS, KV_HEADS, KEYS, DIM, device="cuda", dtype=torch.bfloat16)
v = torch.randn(REQUESTS, KV_HEADS, KEYS, DIM, device="cuda", dtype=torch.bfloat16)
tree = torch.eye(TREE, dtype=torch.int32)
for i in range(1, TREE):
    tree[i] |= tree[(i - 1) // 2]
tree = tree.to("cuda")
out = torch.empty_like(q)

tree_attention[(HEADS, REQUESTS)](
    q,
    k,
    v,
    tree,
    out,
    DIM**-0.5 * 1.4426950408889634,
    HEADS=HEADS,
    KV_HEADS=KV_HEADS,
    KEYS=KEYS,
    TREE=TREE,
    DIM=DIM,
    BLOCK_N=64,
    num_warps=4,
    num_stages=3,
)

grouped = q.view(REQUESTS, TREE, KV_HEADS, HEADS // KV_HEADS, DIM).permute(0, 2, 3, 1, 4)
score = grouped.reshape(REQUESTS, KV_HEADS, -1, DIM).float() @ k.float().transpose(2, 3) * DIM**-0.5
score = score.view(REQUESTS, KV_HEADS, HEADS // KV_HEADS, TREE, KEYS)
score[..., KEYS - TREE :].masked_fill_(tree == 0, float("-inf"))
want = (score.softmax(-1).flatten(2, 3) @ v.float()).view(REQUESTS, KV_HEADS, HEADS // KV_HEADS, TREE, DIM)
torch.testing.assert_close(out.float(), want.permute(0, 3, 1, 2, 4).flatten(2, 3), rtol=2e-2, atol=1e-3)
