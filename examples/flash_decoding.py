"""Flash-decoding: one query a sequence against a long cache, which several blocks share; a second kernel combines."""

import argparse

import torch
import triton
import triton.language as tl


@triton.jit
def decode_split(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, scale, seq_len, split_len,
    GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """The GROUP queries that share a head of k and v, against `split_len` keys of it."""
    head = tl.program_id(0).to(tl.int64)
    split = tl.program_id(1)
    rows = tl.arange(0, GROUP)
    dims = tl.arange(0, HEAD_DIM)
    q = tl.load(q_ptr + (head * GROUP + rows[:, None]) * HEAD_DIM + dims[None, :])
    m_i = tl.full([GROUP], float("-inf"), tl.float32)
    l_i = tl.zeros([GROUP], tl.float32)
    acc = tl.zeros([GROUP, HEAD_DIM], tl.float32)
    for start in range(split * split_len, split * split_len + split_len, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        place = (head * seq_len + keys[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + place)
        s = tl.dot(q, k.T) * scale
        m_new = tl.maximum(m_i, tl.max(s, 1))
        alpha = tl.exp(m_i - m_new)
        p = tl.exp(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_ptr + place)
        acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
        m_i = m_new
    row = (head * GROUP + rows) * tl.num_programs(1) + split
    tl.store(o_ptr + row[:, None] * HEAD_DIM + dims[None, :], acc / l_i[:, None])
    tl.store(lse_ptr + row, m_i + tl.log(l_i))


@triton.jit
def combine(o_ptr, lse_ptr, out_ptr, SPLITS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """The weighted mean of a query's partial outputs."""
    row = tl.program_id(0).to(tl.int64)
    splits = tl.arange(0, SPLITS)
    dims = tl.arange(0, HEAD_DIM)
    lse = tl.load(lse_ptr + row * SPLITS + splits)
    weight = tl.exp(lse - tl.max(lse, 0))
    o = tl.load(o_ptr + (row * SPLITS + splits[:, None]) * HEAD_DIM + dims[None, :])
    out = tl.sum(o * weight[:, None], 0) / tl.sum(weight, 0)
    tl.store(out_ptr + row * HEAD_DIM + dims, out.to(out_ptr.dtype.element_ty))


def decode(q, k, v, splits):
    """q [batch, heads, head_dim]; k, v [batch, kv_heads, seq_len, head_dim]; splits: a power of two."""
    batch, heads, head_dim = q.shape
    kv_heads, seq_len = k.shape[1:3]
    partial = torch.empty(batch, heads, splits, head_dim, device=q.device, dtype=torch.float32)
    lse = torch.empty(batch, heads, splits, device=q.device, dtype=torch.float32)
    out = torch.empty_like(q)
    decode_split[(batch * kv_heads, splits)](
        q, k, v, partial, lse, head_dim**-0.5, seq_len, seq_len // splits,
        GROUP=heads // kv_heads, HEAD_DIM=head_dim, BLOCK_N=128, num_warps=4, num_stages=2,
    )  # fmt: skip
    combine[(batch * heads,)](partial, lse, out, SPLITS=splits, HEAD_DIM=head_dim)
    return out


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=65536)
    parser.add_argument("--splits", type=int, default=32)
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q = torch.randn(args.batch, 128, 128, device=device, dtype=torch.bfloat16)
    k, v = torch.randn(2, args.batch, 8, args.seq_len, 128, device=device, dtype=torch.bfloat16)
    grouped = q.view(args.batch, 8, 16, 128)
    reference = torch.nn.functional.scaled_dot_product_attention(grouped.float(), k.float(), v.float()).reshape(q.shape)
    error = (decode(q, k, v, args.splits).float() - reference).norm() / reference.norm()
    assert error < 1e-2, f"relative error {error}"
    ms = triton.testing.do_bench(lambda: decode(q, k, v, args.splits))
    print(f"decoding {args.batch} x {args.seq_len}: error {error:.1e}, {ms:.3f} ms, ", end="")
    print(f"{4 * k.numel() / ms / 1e6:.0f} GB/s")
