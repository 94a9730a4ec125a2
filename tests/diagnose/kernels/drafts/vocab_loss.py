"""Cross-entropy of every token over a Llama-3 vocabulary, one program a token."""

import torch
import triton
import triton.language as tl


@triton.autotune(
    configs=[triton.Config({"BLOCK_V": 2048}, num_warps=4), triton.Config({"BLOCK_V": 4096}, num_warps=8)],
    key=["V"],
)
@triton.jit
def ce_forward(logits_ptr, label_ptr, loss_ptr, lse_ptr, stride, V, BLOCK_V: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    logits_ptr += row * stride
    label = tl.load(label_ptr + row)
    cols = tl.arange(0, BLOCK_V)

    big = tl.full((BLOCK_V,), -1e30, tl.float32)
    for v in range(0, V, BLOCK_V):
        x = tl.load(logits_ptr + v + cols, mask=v + cols < V, other=-1e30).to(tl.float32)
        big = tl.maximum(big, x)
    m = tl.max(big, axis=0)
    total = tl.zeros((BLOCK_V,), tl.float32)
    for v in range(0, V, BLOCK_V):
        x = tl.load(logits_ptr + v + cols, mask=v + cols < V, other=-1e30).to(tl.float32)  # planted: redundant-load
        total += tl.exp(x - m)
    lse = m + tl.log(tl.sum(total, axis=0))

    target = tl.load(logits_ptr + label).to(tl.float32)
    tl.store(loss_ptr + row, lse - target)
    tl.store(lse_ptr + row, lse)


torch.manual_seed(0)
T, V = 2048, 128256
logits = torch.randn(T, V, device="cuda", dtype=torch.bfloat16) * 3
labels = torch.randint(0, V, (T,), device="cuda")
loss = torch.empty(T, device="cuda", dtype=torch.float32)
lse = torch.empty(T, device="cuda", dtype=torch.float32)
ce_forward[(T,)](logits, labels, loss, lse, logits.stride(0), V)
ref = torch.nn.functional.cross_entropy(logits.float(), labels, reduction="none")
torch.testing.assert_close(loss, ref, rtol=1e-3, atol=1e-3)
