"""Attention as operators of torch, its scores as a whole: O(seq_len^2) memory, on any device, in float32 or wider.

q: [batch, heads, seq_len, head_dim]; k, v: of as many heads or of fewer, which groups of q's heads share, and of any
seq_len; `causal`: the last row of q attends to all of k.
"""

import math

import torch

Tensor = torch.Tensor


def accumulated(tensor: Tensor) -> torch.dtype:
    """What sums over the tensor's numbers are kept in."""
    return torch.promote_types(tensor.dtype, torch.float32)


def formula(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> tuple[Tensor, Tensor]:
    """o, and the natural log-sum-exp [batch, heads, seq_len]; what attends to nothing is 0, its log-sum-exp -inf."""
    q_groups, k_heads, v_heads = _grouped(q, k, v)
    scores = _scores(q_groups, k_heads, causal, sm_scale)
    lse = scores.logsumexp(-1)
    o = _probabilities(scores, lse) @ v_heads
    return o.flatten(1, 2).to(q.dtype), lse.flatten(1, 2)


def formula_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, sm_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v: FlashAttention's backward pass (arXiv 2205.14135, appendix B) in whole matrices."""
    q_groups, k_heads, v_heads = _grouped(q, k, v)
    groups = q_groups.shape[1:3]
    grad, o_groups = (tensor.unflatten(1, groups).to(q_groups.dtype) for tensor in (grad_o, o))
    p = _probabilities(_scores(q_groups, k_heads, causal, sm_scale), lse.unflatten(1, groups))
    dp = grad @ v_heads.mT
    ds = p * (dp - (grad * o_groups).sum(-1, keepdim=True)) * sm_scale
    dq, dk, dv = (ds @ k_heads).flatten(1, 2), (ds.mT @ q_groups).sum(2), (p.mT @ grad).sum(2)
    return dq.to(q.dtype), dk.to(k.dtype), dv.to(v.dtype)


def _grouped(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """q as [batch, heads of k, group, seq_len, head_dim], k and v with a group of one, in float32 or wider."""
    heads = k.shape[1]
    wide = accumulated(q)
    return q.unflatten(1, (heads, -1)).to(wide), k.unsqueeze(2).to(wide), v.unsqueeze(2).to(wide)


def _scores(q: Tensor, k: Tensor, causal: bool, sm_scale: float) -> Tensor:
    scores = q @ k.mT * sm_scale
    if causal:
        ahead = k.shape[-2] - q.shape[-2]
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1 + ahead)
        scores.masked_fill_(later, -math.inf)
    return scores


def _probabilities(scores: Tensor, lse: Tensor) -> Tensor:
    """exp(scores - lse), 0 in rows of nothing but -inf."""
    return (scores - lse.masked_fill(lse == -math.inf, 0)[..., None]).exp()
