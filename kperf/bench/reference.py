"""Inputs of a workload, the exact result in float32, and how far a result lies from it."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch

from kperf.attention.inputs import draw
from kperf.attention.libraries import Output
from kperf.attention.workload import Workload


@dataclass(frozen=True)
class Inputs:
    """q, k, v [batch, heads, seq_len, head_dim], and for a backward pass do, the gradient of o.

    k and v may have fewer heads.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    do: torch.Tensor | None = None


@dataclass(frozen=True)
class Exact:
    """In float32, o [batch, heads, seq_len, head_dim], lse [batch, heads, seq_len], and for a backward pass dq, dk, dv.

    Apart from the inputs, as it need not stay: the inputs of 17 workloads fit in 80 GB, with their results they do not.
    """

    o: torch.Tensor
    lse: torch.Tensor
    gradients: tuple[torch.Tensor, ...] = ()


def make_inputs(workload: Workload, seed: int, device_name: str = "cuda") -> Inputs:
    """Fresh inputs of the workload's kind."""
    dtype = getattr(torch, workload.dtype)
    q, k, v = draw(workload.inputs, workload.shape, dtype, seed, device_name, workload.kv_heads)
    if not workload.backward:
        return Inputs(q, k, v)
    do, *_ = draw("normal", workload.shape, dtype, seed + 1, device_name)
    return Inputs(q, k, v, do)


def expected_of(workload: Workload, inputs: Inputs) -> Exact:
    """What a workload gives on these inputs, by slices of one head, so that 16 x 16384 fits."""
    operands = inputs.q, inputs.k, inputs.v
    o, lse = reference(*operands, workload.causal, workload.sm_scale)
    if inputs.do is None:
        return Exact(o, lse)
    return Exact(o, lse, reference_gradients(*operands, o, lse, inputs.do, workload.causal, workload.sm_scale))


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * sm_scale) v and the natural log-sum-exp of each row, in float32, head by head.

    q: [batch, heads, seq_len, head_dim] of any type; k, v: the same, or of fewer heads; o: the shape of q; lse:
    [batch, heads, seq_len].
    """
    o = torch.empty_like(q, dtype=torch.float32)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    mask = _above_diagonal(q) if causal else None
    for b, h, kv_h in _heads(q, k):
        scores = _scores(q[b, h], k[b, kv_h], mask, sm_scale)
        lse[b, h] = torch.logsumexp(scores, -1)
        o[b, h] = scores.sub_(lse[b, h][:, None]).exp_() @ v[b, kv_h].float()
    return o, lse


def reference_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv in float32, head by head, from what `reference` gives and do, the gradient of o (the shape of q).

    dv = p^T do, ds = p * (do v^T - rowsum(do * o)), dq = ds k * sm_scale, dk = ds^T q * sm_scale (FlashAttention-2,
    arXiv 2307.08691, section 2.3.2); heads of q that share one of k and v add up.
    """
    dq, dk, dv = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (q, k, v))
    mask = _above_diagonal(q) if causal else None
    for b, h, kv_h in _heads(q, k):
        p = _scores(q[b, h], k[b, kv_h], mask, sm_scale).sub_(lse[b, h][:, None]).exp_()
        d_o = do[b, h].float()
        dv[b, kv_h] += p.T @ d_o
        ds = p.mul_(d_o @ v[b, kv_h].float().T - (d_o * o[b, h]).sum(-1, keepdim=True))
        dq[b, h] = ds @ k[b, kv_h].float() * sm_scale
        dk[b, kv_h] += ds.T @ q[b, h].float() * sm_scale
    return dq, dk, dv


def _heads(q: torch.Tensor, k: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Batch, head of q, and the head of k and v that it shares."""
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        yield b, h, h * k.shape[1] // q.shape[1]


def _above_diagonal(q: torch.Tensor) -> torch.Tensor:
    return torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)


def _scores(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, sm_scale: float) -> torch.Tensor:
    """Of one head, [seq_len, seq_len]; minus infinity where the mask is."""
    scores = q.float() @ k.float().T * sm_scale
    return scores if mask is None else scores.masked_fill_(mask, -math.inf)


def errors(output: Output, expected: Exact) -> tuple[float, float | None]:
    """(|o - ref| / |ref|, largest |lse - ref| / max(|ref|, 1) or None); not a number where the output is not.

    Of scores in thousands float32 itself is 1e-4 and more off.
    """
    o, lse = output
    lse_error = None if lse is None else float(((lse - expected.lse) / expected.lse.abs().clamp(min=1)).abs().max())
    return _rel_error(o, expected.o), lse_error


def gradient_error(gradients: Sequence[torch.Tensor], expected: Exact) -> float:
    """The largest of |d - ref| / |ref| over dq, dk and dv; not a number where one of them is not."""
    rel_errors = [_rel_error(d, d_exact) for d, d_exact in zip(gradients, expected.gradients, strict=True)]
    return math.nan if any(map(math.isnan, rel_errors)) else max(rel_errors)


def _rel_error(output: torch.Tensor, reference: torch.Tensor) -> float:
    difference = squares = 0.0
    for b in range(output.shape[0]):  # by batch: a float64 copy of the whole output need not fit
        expected = reference[b].double()
        difference += float((output[b].double() - expected).square().sum())
        squares += float(expected.square().sum())
    return math.sqrt(difference / squares)
