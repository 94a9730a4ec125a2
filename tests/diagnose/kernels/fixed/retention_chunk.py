"""Output of chunked linear attention with decay: the carried state's part and causal attention in each chunk."""

import torch
import triton
import triton.language as tl

HEADS = 64
SEQ = 4096
D = 64
CHUNK = 64


@triton.jit
def retention_chunk(q_ptr, k_ptr, v_ptr, state_ptr, decay_ptr, o_ptr, SEQ, scale, D: tl.constexpr, CHUNK: tl.constexpr):
    chunk = tl.program_id(0)
    head = tl.program_id(1)
    rt = tl.arange(0, CHUNK)
    rd = tl.arange(0, D)
    at = (head * SEQ + chunk * CHUNK + rt)[:, None] * D + rd[None, :]
    q = tl.load(q_ptr + at)
    k = tl.load(k_ptr + at)
    v = tl.load(v_ptr + at)
    state = tl.load(state_ptr + (head * (SEQ // CHUNK) + chunk) * D * D + rd[:, None] * D + rd[None, :])
    log_decay = tl.load(decay_ptr + head)
    gap = rt[:, None] - rt[None, :]
    s = tl.dot(q, tl.trans(k))
    s = tl.where(gap >= 0, s * tl.exp2(gap * log_decay), 0.0)
    o = tl.dot(q, state) * tl.exp2((rt + 1) * log_decay)[:, None]
    o = tl.dot(s.to(tl.bfloat16), v, o)
    tl.store(o_ptr + at, (o * scale).to(tl.bfloat16))


torch.manual_seed(0)
q = torch.randn(HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
k = torch.randn(HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
v = torch.randn(HEADS, SEQ, D, device="cuda", dtype=torch.bfloat16)
state = torch.randn(HEADS, SEQ // CHUNK, D, D, device="cuda", dtype=torch.bfloat16)
log_decay = torch.log2(1 - torch.exp2(-5 - 3 * torch.arange(HEADS, device="cuda") / HEADS))
o = torch.empty_like(q)

retention_chunk[(SEQ // CHUNK, HEADS)](q, k, v, state, log_decay, o, SEQ, D**-0.5, D=D, CHUNK=CHUNK, num_warps=4)

t = torch.arange(CHUNK, device="cuda")
gap = t[:, None] - t[None, :]
for h in (0, HEADS - 1):
    qc, kc, vc = (z[h].float().view(-1, CHUNK, D) for z in (q, k, v))
    mask = torch.where(gap >= 0, torch.exp2(gap * log_decay[h]), 0.0)
    want = ((qc @ kc.mT) * mask) @ vc + (qc @ state[h].float()) * torch.exp2((t + 1) * log_decay[h])[:, None]
    torch.testing.assert_close(o[h].float().view(-1, CHUNK, D), want * D**-0.5, rtol=2e-2, atol=1e-1)
