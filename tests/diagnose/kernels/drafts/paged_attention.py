"""Paged attention for one decode step with grouped query heads and sequences of very different lengths.
Fault: the loop runs over the full width of the block table (the model's longest context) and masks what lies behind
the end of the sequence; most iterations load nothing but still run two dots and a softmax update.
Fix: bound the loop by the sequence's own number of pages, tl.cdiv(seq_len, PAGE)."""

import torch
import triton
import triton.language as tl

B, HKV, GROUP, D, PAGE = 128, 8, 4, 128, 64
MAX_PAGES = 256
MIN_LEN, MAX_LEN = 128, 2048


@triton.jit
def softmax_step(s, m, l):
    m_new = tl.maximum(m, tl.max(s, axis=1))
    alpha = tl.exp2(m - m_new)
    p = tl.exp2(s - m_new[:, None])
    return p, m_new, l * alpha + tl.sum(p, axis=1), alpha


@triton.jit
def paged_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    table_ptr,
    len_ptr,
    o_ptr,
    max_pages,
    scale,
    HKV: tl.constexpr,
    GROUP: tl.constexpr,
    GROUP_PAD: tl.constexpr,
    D: tl.constexpr,
    PAGE: tl.constexpr,
):
    b = tl.program_id(0)
    hk = tl.program_id(1)
    seq_len = tl.load(len_ptr + b)
    rg = tl.arange(0, GROUP_PAD)
    rd = tl.arange(0, D)
    rt = tl.arange(0, PAGE)
    q_off = ((b * HKV + hk) * GROUP + rg[:, None]) * D + rd[None, :]
    q = tl.load(q_ptr + q_off, mask=rg[:, None] < GROUP, other=0.0)
    m = tl.full((GROUP_PAD,), -float("inf"), tl.float32)
    l = tl.zeros((GROUP_PAD,), tl.float32)
    acc = tl.zeros((GROUP_PAD, D), tl.float32)
    for i in range(0, max_pages):  # planted: masked-tiles
        page = tl.load(table_ptr + b * max_pages + i).to(tl.int64)
        live = i * PAGE + rt < seq_len
        kv_off = ((page * PAGE + rt) * HKV + hk)[:, None] * D + rd[None, :]
        k = tl.load(k_ptr + kv_off, mask=live[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * scale
        s = tl.where(live[None, :], s, -float("inf"))
        p, m, l, alpha = softmax_step(s, m, l)
        v = tl.load(v_ptr + kv_off, mask=live[:, None], other=0.0)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
    acc = acc / l[:, None]
    tl.store(o_ptr + q_off, acc.to(tl.bfloat16), mask=rg[:, None] < GROUP)


torch.manual_seed(0)
lens = torch.randint(MIN_LEN, MAX_LEN + 1, (B,), dtype=torch.int32)
pages_per_seq = (lens + PAGE - 1) // PAGE
n_pages = int(pages_per_seq.sum())
free = torch.randperm(n_pages, dtype=torch.int32)
table = torch.zeros(B, MAX_PAGES, dtype=torch.int32)
start = 0
for i, n in enumerate(pages_per_seq.tolist()):
    table[i, :n] = free[start : start + n]
    start += n
table_d = table.to(device="cuda")
lens_d = lens.to(device="cuda")
q = torch.randn(B, HKV, GROUP, D, device="cuda", dtype=torch.bfloat16)
k_cache = torch.randn(n_pages, PAGE, HKV, D, device="cuda", dtype=torch.bfloat16)
v_cache = torch.randn(n_pages, PAGE, HKV, D, device="cuda", dtype=torch.bfloat16)
o = torch.empty_like(q)

paged_kernel[(B, HKV)](
    q,
    k_cache,
    v_cache,
    table_d,
    lens_d,
    o,
    MAX_PAGES,
    D**-0.5 * 1.4426950408889634,
    HKV,
    GROUP,
    16,
    D,
    PAGE,
    num_warps=4,
    num_stages=2,
)

for i in range(0, B, max(B // 16, 1)):
    n = int(lens[i])
    pages = table_d[i, : int(pages_per_seq[i])].long()
    k = k_cache[pages].reshape(-1, HKV, D)[:n].float()
    v = v_cache[pages].reshape(-1, HKV, D)[:n].float()
    p = torch.softmax(torch.einsum("hgd,thd->hgt", q[i].float(), k) * D**-0.5, dim=-1)
    ref = torch.einsum("hgt,thd->hgd", p, v)
    torch.testing.assert_close(o[i].float(), ref, rtol=2e-2, atol=2e-2)
