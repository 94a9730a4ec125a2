"""State at the start of each chunk in the chunked delta rule: v = u - w h, then h += k^T v, chunk after chunk.

The chunks of a head depend on each other, so the only parallel work is heads x blocks of the value's columns: 128
programs, one to a multiprocessor, each with its part of the state in registers for the whole sequence.
"""

import torch
import triton
import triton.language as tl

HEADS = 64
SEQ = 8192
D = 128
CHUNK = 64


@triton.jit
def delta_state(k_ptr, w_ptr, u_ptr, v_ptr, h_ptr, SEQ, D: tl.constexpr, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr):
    head = tl.program_id(1)
    rv = tl.program_id(0) * BLOCK_V + tl.arange(0, BLOCK_V)
    rt = tl.arange(0, CHUNK)
    rd = tl.arange(0, D)
    h = tl.zeros((D, BLOCK_V), tl.float32)
    for start in range(0, SEQ, CHUNK):
        row = head * SEQ + start + rt
        w = tl.load(w_ptr + row[:, None] * D + rd[None, :])
        k = tl.load(k_ptr + row[None, :] * D + rd[:, None])
        u = tl.load(u_ptr + row[:, None] * D + rv[None, :])
        state = h.to(tl.bfloat16)
        at = (head * (SEQ // CHUNK) + start // CHUNK) * D * D
        tl.store(h_ptr + at + rd[:, None] * D + rv[None, :], state)
        v = (u.to(tl.float32) - tl.dot(w, state)).to(tl.bfloat16)
        tl.store(v_ptr + row[:, None] * D + rv[None, :], v)
        h = tl.dot(k, v, h)


torch.manual_seed(0)
k = torch.nn.functional.normalize(torch.randn(HEADS, SEQ, D, device="cuda"), dim=-1).bfloat16()
w = (k.float() * torch.rand(HEADS, SEQ, 1, device="cuda") * 0.1).bfloat16()
u = (torch.randn(HEADS, SEQ, D, device="cuda") * 0.1).bfloat16()
v = torch.empty_like(u)
h = torch.empty(HEADS, SEQ // CHUNK, D, D, device="cuda", dtype=torch.bfloat16)

delta_state[(D // 64, HEADS)](k, w, u, v, h, SEQ, D=D, CHUNK=CHUNK, BLOCK_V=64, num_warps=4, num_stages=3)

state = torch.zeros(HEADS, D, D, device="cuda")
for c in range(SEQ // CHUNK):
    at = slice(c * CHUNK, (c + 1) * CHUNK)
    torch.testing.assert_close(h[:, c].float(), state, rtol=5e-2, atol=5e-2)
    part = u[:, at].float() - w[:, at].float() @ state.bfloat16().float()
    torch.testing.assert_close(v[:, at].float(), part, rtol=5e-2, atol=2e-2)
    state += k[:, at].float().mT @ part.bfloat16().float()
