"""MoE combine: weighted sum of the top-k expert rows back into their tokens.
Fault: every permuted row is scattered with an fp32 atomic into a zeroed output, TOPK atomics per output element:
each is a read-modify-write in L2 on top of the zero fill. Fix: one program per token that gathers its TOPK rows
through the inverse permutation, sums them in registers and stores once."""

import torch
import triton
import triton.language as tl

T = 16384
TOPK = 8
H = 2048


@triton.jit
def weighted_row(x_ptr, w_ptr, row, slot, cols, H: tl.constexpr):
    w = tl.load(w_ptr + slot)
    x = tl.load(x_ptr + row.to(tl.int64) * H + cols)
    return x.to(tl.float32) * w


@triton.jit
def combine_kernel(x_ptr, w_ptr, map_ptr, out_ptr, H: tl.constexpr, TOPK: tl.constexpr, BLOCK_H: tl.constexpr):
    row = tl.program_id(0)
    cols = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    slot = tl.load(map_ptr + row)
    token = slot // TOPK
    y = weighted_row(x_ptr, w_ptr, row, slot, cols, H)
    tl.atomic_add(out_ptr + token * H + cols, y, sem="relaxed")  # planted: needless-atomics


torch.manual_seed(0)
expert = torch.randint(0, 64, (T * TOPK,), device="cuda")
slot_of_row = torch.argsort(expert, stable=True)
row_of_slot = torch.argsort(slot_of_row)
expert_out = torch.randn(T * TOPK, H, device="cuda", dtype=torch.bfloat16)
weights = torch.softmax(torch.randn(T, TOPK, device="cuda"), dim=-1).contiguous()
slot_map = slot_of_row.to(torch.int32)
out = torch.zeros(T, H, device="cuda")

combine_kernel[(T * TOPK, H // 1024)](expert_out, weights, slot_map, out, H, TOPK, BLOCK_H=1024, num_warps=4)

ref = torch.zeros_like(out)
for k in range(TOPK):
    ref += expert_out[row_of_slot.view(T, TOPK)[:, k]].float() * weights[:, k, None]
torch.testing.assert_close(out, ref, rtol=1e-4, atol=1e-4)
