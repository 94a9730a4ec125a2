"""Attention forward and backward in plain Triton, in the manner of its tutorial; `--causal` masks the future."""

import argparse

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit
def forward_step(acc, l_i, m_i, q, k_desc, v_desc, head, start, rows, scale, N: tl.constexpr, MASKED: tl.constexpr):
    """One block of keys under the online softmax, in units of log2."""
    k = k_desc.load([head + start, 0])
    s = tl.dot(q, k.T) * scale
    if MASKED:
        s = tl.where(rows[:, None] >= start + tl.arange(0, N)[None, :], s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, 1))
    p = tl.exp2(s - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    v = v_desc.load([head + start, 0])
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, l_i * alpha + tl.sum(p, 1), m_new


@triton.jit
def attention_forward(
    q_desc, k_desc, v_desc, o_desc, lse_ptr, scale, seq_len,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1) * seq_len
    rows = first + tl.arange(0, BLOCK_M)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    q = q_desc.load([head + first, 0])
    unmasked = first if CAUSAL else seq_len
    for start in range(0, unmasked, BLOCK_N):
        acc, l_i, m_i = forward_step(acc, l_i, m_i, q, k_desc, v_desc, head, start, rows, scale, BLOCK_N, False)
    if CAUSAL:
        for start in range(first, first + BLOCK_M, BLOCK_N):
            acc, l_i, m_i = forward_step(acc, l_i, m_i, q, k_desc, v_desc, head, start, rows, scale, BLOCK_N, True)
    o_desc.store([head + first, 0], (acc / l_i[:, None]).to(o_desc.dtype))
    tl.store(lse_ptr + head + rows, m_i + tl.log2(l_i))


@triton.jit
def attention_delta(o_ptr, do_ptr, delta_ptr, HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr):
    """The row sums of o * do."""
    rows = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    place = rows[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    o = tl.load(o_ptr + place).to(tl.float32)
    do = tl.load(do_ptr + place).to(tl.float32)
    tl.store(delta_ptr + rows, tl.sum(o * do, 1))


@triton.jit
def attention_backward_kv(
    q_ptr, k_ptr, v_ptr, do_ptr, dk_ptr, dv_ptr, lse_ptr, delta_ptr, scale, seq_len,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dk and dv of BLOCK_N keys, over all rows of q that see them."""
    first = tl.program_id(0) * BLOCK_N
    head = tl.program_id(1).to(tl.int64) * seq_len
    dims = tl.arange(0, HEAD_DIM)
    keys = first + tl.arange(0, BLOCK_N)
    kv_place = (head + keys[:, None]) * HEAD_DIM + dims[None, :]
    k = tl.load(k_ptr + kv_place)
    v = tl.load(v_ptr + kv_place)
    dk = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    dv = tl.zeros([BLOCK_N, HEAD_DIM], tl.float32)
    for start in range(first if CAUSAL else 0, seq_len, BLOCK_M):
        rows = start + tl.arange(0, BLOCK_M)
        q_place = (head + rows[:, None]) * HEAD_DIM + dims[None, :]
        q = tl.load(q_ptr + q_place)
        do = tl.load(do_ptr + q_place)
        lse = tl.load(lse_ptr + head + rows)
        delta = tl.load(delta_ptr + head + rows)
        p_t = tl.exp2(tl.dot(k, q.T) * (scale * LOG2_E) - lse[None, :])
        if CAUSAL:
            p_t = tl.where(rows[None, :] >= keys[:, None], p_t, 0.0)
        dv = tl.dot(p_t.to(do.dtype), do, dv)
        ds_t = p_t * (tl.dot(v, do.T) - delta[None, :])
        dk = tl.dot(ds_t.to(q.dtype), q, dk)
    tl.store(dk_ptr + kv_place, (dk * scale).to(dk_ptr.dtype.element_ty))
    tl.store(dv_ptr + kv_place, dv.to(dv_ptr.dtype.element_ty))


@triton.jit
def attention_backward_q(
    q_ptr, k_ptr, v_ptr, do_ptr, dq_ptr, lse_ptr, delta_ptr, scale, seq_len,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):  # fmt: skip
    """dq of BLOCK_M rows, over all keys that they see."""
    first = tl.program_id(0) * BLOCK_M
    head = tl.program_id(1).to(tl.int64) * seq_len
    dims = tl.arange(0, HEAD_DIM)
    rows = first + tl.arange(0, BLOCK_M)
    q_place = (head + rows[:, None]) * HEAD_DIM + dims[None, :]
    q = tl.load(q_ptr + q_place)
    do = tl.load(do_ptr + q_place)
    lse = tl.load(lse_ptr + head + rows)
    delta = tl.load(delta_ptr + head + rows)
    dq = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)
    for start in range(0, first + BLOCK_M if CAUSAL else seq_len, BLOCK_N):
        keys = start + tl.arange(0, BLOCK_N)
        kv_place = (head + keys[:, None]) * HEAD_DIM + dims[None, :]
        k = tl.load(k_ptr + kv_place)
        v = tl.load(v_ptr + kv_place)
        p = tl.exp2(tl.dot(q, k.T) * (scale * LOG2_E) - lse[:, None])
        if CAUSAL:
            p = tl.where(rows[:, None] >= keys[None, :], p, 0.0)
        ds = p * (tl.dot(do, v.T) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    tl.store(dq_ptr + q_place, (dq * scale).to(dq_ptr.dtype.element_ty))


class Attention(torch.autograd.Function):
    """softmax(q k^T / sqrt(head_dim)) v."""

    @staticmethod
    def forward(ctx, q, k, v, causal):
        """q, k, v: contiguous [batch, heads, seq_len, head_dim], seq_len in blocks of 128."""
        batch, heads, seq_len, head_dim = q.shape
        o = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], device=q.device, dtype=torch.float32)
        q_desc, k_desc, v_desc, o_desc = (
            TensorDescriptor.from_tensor(tensor.view(-1, head_dim), [rows, head_dim])
            for tensor, rows in ((q, 128), (k, 64), (v, 64), (o, 128))
        )
        attention_forward[(seq_len // 128, batch * heads)](
            q_desc, k_desc, v_desc, o_desc, lse, head_dim**-0.5 * LOG2_E.value, seq_len,
            HEAD_DIM=head_dim, BLOCK_M=128, BLOCK_N=64, CAUSAL=causal, num_warps=4, num_stages=3,
        )  # fmt: skip
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal = causal
        return o

    @staticmethod
    def backward(ctx, do):
        """do: as q."""
        q, k, v, o, lse = ctx.saved_tensors
        batch, heads, seq_len, head_dim = q.shape
        do = do.contiguous()
        dq, dk, dv, delta = (torch.empty_like(tensor) for tensor in (q, k, v, lse))
        attention_delta[(lse.numel() // 128,)](o, do, delta, HEAD_DIM=head_dim, BLOCK_M=128)
        options = {"HEAD_DIM": head_dim, "CAUSAL": ctx.causal, "num_warps": 8, "num_stages": 2}
        scale = head_dim**-0.5
        attention_backward_kv[(seq_len // 128, batch * heads)](
            q, k, v, do, dk, dv, lse, delta, scale, seq_len, BLOCK_M=64, BLOCK_N=128, **options
        )
        attention_backward_q[(seq_len // 128, batch * heads)](
            q, k, v, do, dq, lse, delta, scale, seq_len, BLOCK_M=128, BLOCK_N=64, **options
        )
        return dq, dk, dv, None


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--seq-len", type=int, default=4096)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--causal", action="store_true")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    shape = (args.batch, args.heads, args.seq_len, args.head_dim)
    q, k, v, do = (torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(4))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    o = Attention.apply(q, k, v, args.causal)
    found = [o, *torch.autograd.grad(o, leaves, do, retain_graph=True)]
    exact = [tensor.detach().float().requires_grad_() for tensor in leaves]
    expected_o = torch.nn.functional.scaled_dot_product_attention(*exact, is_causal=args.causal)
    expected = [expected_o, *torch.autograd.grad(expected_o, exact, do.float())]
    errors = [float(((a - b).norm() / b.norm()).detach()) for a, b in zip(found, expected, strict=True)]
    assert max(errors) < 1e-2, f"relative errors of o, dq, dk, dv: {errors}"
    forward_ms = triton.testing.do_bench(lambda: Attention.apply(q, k, v, args.causal))
    backward_ms = triton.testing.do_bench(lambda: torch.autograd.grad(o, leaves, do, retain_graph=True))
    print(f"attention {shape}: errors {', '.join(f'{error:.1e}' for error in errors)}, ", end="")
    print(f"forward {forward_ms:.3f} ms, backward {backward_ms:.3f} ms")
