"""Output of chunked linear attention with decay: the carried state's part and causal attention in each chunk.

Fault: the bf16 tiles are converted to fp32 and multiplied with input_precision="ieee", which runs on the FP32 lanes and
not on the tensor cores. A chunk of 64 positions needs 1.6 MFLOP; 4096 chunks are 6.4 GFLOP, 130 us or more at the 50
TFLOP/s the lanes can do at best, while the 168 MB of traffic take 50 us and the tensor cores would need 10 us.
Fix: multiply the bf16 tiles as they are and accumulate in fp32.
"""

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
    q = tl.load(q_ptr + at).to(tl.float32)
    k = tl.load(k_ptr + at).to(tl.float32)
    v = tl.load(v_ptr + at).to(tl.float32)
    state = tl.load(state_ptr + (head * (SEQ // CHUNK) + chunk) * D * D + rd[:, None] * D + rd[None, :]).to(tl.float32)
    log_decay = tl.load(decay_ptr + head)
    gap = rt[:, None] - rt[None, :]
    s = tl.dot(q, tl.trans(k), input_precision="ieee")  # planted: dot-on-fma
    s = tl.where(gap >= 0, s * tl.exp2(gap * log_decay), 0.0)
    o = tl.dot(q, state, input_precision="ieee") * tl.exp2((rt + 1) * log_decay)[:, None]
    o = tl.dot(s, v, o, input_precision="ieee")
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
