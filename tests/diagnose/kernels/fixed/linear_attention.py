"""Linear attention, not causal: out = Q (K^T V) / (Q sum(K)), with non-negative features and no softmax."""

import torch
import triton
import triton.language as tl

HEADS = 32
LENGTH = 8192
DIM = 64
PIECE = 512


@triton.jit
def sum_states(
    k_ptr,
    v_ptr,
    state_ptr,
    total_ptr,
    LENGTH: tl.constexpr,
    DIM: tl.constexpr,
    PIECE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    head = tl.program_id(1)
    begin = tl.program_id(0) * PIECE
    rn = tl.arange(0, BLOCK)
    rd = tl.arange(0, DIM)
    state = tl.zeros((DIM, DIM), tl.float32)
    total = tl.zeros((BLOCK, DIM), tl.float32)
    for start in tl.range(begin, begin + PIECE, BLOCK, num_stages=3):  # pipelines the load beside the MMA too
        at = head * LENGTH * DIM + (start + rn)[:, None] * DIM + rd[None, :]
        k = tl.load(k_ptr + at)
        v = tl.load(v_ptr + at)
        state = tl.dot(tl.trans(k), v, state)
        # two loads of k: Triton makes a buffer too few for a tile that an MMA and other code use (triton-lang/triton#6691)
        total += tl.load(k_ptr + at, eviction_policy="evict_last").to(tl.float32)
    tl.atomic_add(state_ptr + head * DIM * DIM + rd[:, None] * DIM + rd[None, :], state, sem="relaxed")
    tl.atomic_add(total_ptr + head * DIM + rd, tl.sum(total, axis=0), sem="relaxed")


@triton.jit
def linear_attention(
    q_ptr, state_ptr, total_ptr, o_ptr, LENGTH: tl.constexpr, DIM: tl.constexpr, BLOCK_M: tl.constexpr
):
    head = tl.program_id(1)
    rm = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    rd = tl.arange(0, DIM)
    at = head * LENGTH * DIM + rm[:, None] * DIM + rd[None, :]
    q = tl.load(q_ptr + at)
    state = tl.load(state_ptr + head * DIM * DIM + rd[:, None] * DIM + rd[None, :])
    total = tl.load(total_ptr + head * DIM + rd)
    weight = tl.sum(q.to(tl.float32) * total[None, :], axis=1)
    tl.store(o_ptr + at, (tl.dot(q, state.to(tl.bfloat16)) / weight[:, None]).to(tl.bfloat16))


torch.manual_seed(0)
q = torch.randn(HEADS, LENGTH, DIM, device="cuda").relu().add(0.1).bfloat16()
k = torch.randn(HEADS, LENGTH, DIM, device="cuda").relu().add(0.1).bfloat16()
v = (torch.randn(HEADS, LENGTH, DIM, device="cuda") + 0.5).bfloat16()
o = torch.empty_like(q)

state = torch.zeros(HEADS, DIM, DIM, device="cuda")
total = torch.zeros(HEADS, DIM, device="cuda")
sum_states[(LENGTH // PIECE, HEADS)](
    k, v, state, total, LENGTH=LENGTH, DIM=DIM, PIECE=PIECE, BLOCK=64, num_warps=4, num_stages=3
)
linear_attention[(LENGTH // 128, HEADS)](q, state, total, o, LENGTH=LENGTH, DIM=DIM, BLOCK_M=128, num_warps=4)

state = k.float().transpose(1, 2) @ v.float()
want = (q.float() @ state) / (q.float() @ k.float().sum(1)[:, :, None])
torch.testing.assert_close(o.float(), want, rtol=2e-2, atol=1e-2)
