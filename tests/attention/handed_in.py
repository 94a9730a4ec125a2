"""q, k, v in the layouts in which people hand them in, and attention in float32 or float64."""

import itertools
import math

import torch

SCALE = 0.09


def normal(*shape, dtype=torch.bfloat16, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(heads=4, kv_heads=4, seq_len=256, head_dim=128, dtype=torch.bfloat16, batch=2):
    return (
        normal(batch, heads, seq_len, head_dim, dtype=dtype),
        normal(batch, kv_heads, seq_len, head_dim, dtype=dtype, seed=1),
        normal(batch, kv_heads, seq_len, head_dim, dtype=dtype, seed=2),
    )


def exact(q, k, v, causal):
    """In float64, each head of k and v for so many heads of q in a row; causal, the last row attends to all of k."""
    groups = q.shape[1] // k.shape[1]
    q, k, v = (tensor.double() for tensor in (q, k, v))
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    scores = q @ k.mT * SCALE
    if causal:
        scores = scores.masked_fill(_later(q, k), float("-inf"))
    return scores.softmax(-1) @ v, scores.logsumexp(-1)


def _later(q, k):
    """Which columns are after the last one of each row."""
    return torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).triu(1 + k.shape[2] - q.shape[2])


def begins_of(lengths, device="cpu"):
    """cu_seqlens of these lengths."""
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def ragged_operands(lengths_q, lengths_k, heads=4, kv_heads=2, head_dim=64, dtype=torch.bfloat16):
    return (
        normal(sum(lengths_q), heads, head_dim, dtype=dtype),
        normal(sum(lengths_k), kv_heads, head_dim, dtype=dtype, seed=1),
        normal(sum(lengths_k), kv_heads, head_dim, dtype=dtype, seed=2),
    )


def exact_ragged(q, k, v, lengths_q, lengths_k, causal):
    """In float32 or wider, sequence by sequence: o, and the log-sum-exp [heads, total_q]."""
    q, k, v = (tensor.to(torch.promote_types(q.dtype, torch.float32)) for tensor in (q, k, v))
    o, lse = torch.zeros_like(q), q.new_full(q.shape[1::-1], -math.inf)
    group, q_at, k_at = q.shape[1] // k.shape[1], 0, 0
    for q_len, kv_len in zip(lengths_q, lengths_k, strict=True):
        rows, keys = slice(q_at, q_at + q_len), slice(k_at, k_at + kv_len)
        q_at, k_at = rows.stop, keys.stop
        if q_len and kv_len:
            k_heads, v_heads = (tensor[keys].repeat_interleave(group, 1).transpose(0, 1) for tensor in (k, v))
            scores = q[rows].transpose(0, 1) @ k_heads.mT * SCALE
            if causal:
                later = torch.ones(q_len, kv_len, dtype=torch.bool, device=q.device).triu(1 + kv_len - q_len)
                scores = scores.masked_fill(later, -math.inf)
            lse[:, rows] = scores.logsumexp(-1)
            o[rows] = (scores.softmax(-1).nan_to_num() @ v_heads).transpose(0, 1)
    return o, lse


def rows_first(tensor):
    """The same numbers in the memory of [batch, seq_len, heads, head_dim]."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def of_one_product(tensor):
    """A view into a product of three times the columns, as a fused projection gives it."""
    batch, heads, seq_len, head_dim = tensor.shape
    wide = tensor.new_zeros(batch, seq_len, heads, 3 * head_dim)
    wide[..., head_dim : 2 * head_dim] = tensor.transpose(1, 2)
    return wide[..., head_dim : 2 * head_dim].transpose(1, 2)


def off_by_an_element(tensor):
    flat = tensor.new_zeros(tensor.numel() + 1)
    flat[1:] = tensor.flatten()
    return flat[1:].view(tensor.shape)


def rows_of_132(tensor):
    """Rows that begin at multiples of 8 bytes, not of 16."""
    return torch.cat([tensor, tensor[..., :4]], -1)[..., : tensor.shape[-1]]


LAYOUTS = {
    "contiguous": lambda tensor: tensor,
    "rows_first": rows_first,
    "of_one_product": of_one_product,
    "off_by_an_element": off_by_an_element,
    "rows_of_132": rows_of_132,
    "every_other_column": lambda tensor: tensor.repeat_interleave(2, -1)[..., ::2],
}
