"""`kperf::attention_varlen`: Improved+ on sequences of different lengths, one after the other, as an operator of torch.

    from kperf.integrations.varlen import attention_varlen
    o = attention_varlen(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, causal=True)

The kernel reads q, k, v and cu_seqlens where they lie (`kperf.attention.ragged`): nothing is read back from the GPU,
and a CUDA graph that captured a call computes what its tensors hold at the replay, other lengths included. The backward
pass is FlashAttention-2's, which comes with torch, from the saved o and log-sum-exp. Where Improved+ does not apply,
FlashAttention-2 computes the forward pass, and where that does not apply either (tensors on the CPU, float32, float64)
the formula itself, sequence by sequence; `why_not` says why.
"""

from itertools import pairwise, starmap
from typing import Any

import torch
from torch import library

from kperf.attention import ragged
from kperf.attention.operands import default_scale, rows_aligned
from kperf.compat.torch import observed
from kperf.errors import UsageError
from kperf.integrations.formula import accumulated, formula, formula_backward

Tensor = torch.Tensor


def attention_varlen(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
) -> Tensor:
    """softmax(q k^T * softmax_scale) v of each sequence, like flash_attn_varlen_func, with gradients for q, k and v.

    q: [total_q, heads, head_dim]; k, v: [total_k, kv_heads, head_dim], of as many heads or of fewer, which groups of
    q's heads share. cu_seqlens_q, cu_seqlens_k: int32 [batch + 1], the row where each sequence begins, and the end.
    max_seqlen_q, max_seqlen_k: no sequence is longer. causal: a sequence's last row of q attends to all its keys.
    softmax_scale: positive, head_dim ** -0.5 if not given. o: [total_q, heads, head_dim], contiguous, of q's dtype;
    rows that attend to nothing are 0, and rows behind the last sequence are not defined. Under torch.autocast q, k and
    v are cast to its dtype. Raises `UsageError` for what is no attention; numbers in cu_seqlens are not checked, as
    they lie on the GPU.
    """
    kind = q.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):  # of meta torch does not answer
        q, k, v = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (q, k, v))
    scale = default_scale(q) if softmax_scale is None else float(softmax_scale)
    given = (q, k, v, cu_seqlens_q, cu_seqlens_k)
    if scale > 0 and not observed(*given) and why_not(*given, max_seqlen_k, causal) is None:
        return ragged.attend(*given, causal, max_seqlen_k, scale)[0]
    o: Tensor = _forward(*given, max_seqlen_q, max_seqlen_k, causal, scale)[0]
    return o


def why_not(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, max_seqlen_k: int, causal: bool
) -> str | None:
    """None if Improved+ itself computes this, else the sentence that says why the fallback does.

    Raises `UsageError` as `attention_varlen` does.
    """
    return ragged.plan(q, k, v, cu_seqlens_q, cu_seqlens_k, causal, max_seqlen_k).why_not


@library.custom_op("kperf::attention_varlen", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool, softmax_scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """o, contiguous, and the natural log-sum-exp [heads, total_q] in float32 (float64 for float64)."""
    if not softmax_scale > 0:
        raise UsageError(f"attention_varlen takes a positive softmax_scale, not {softmax_scale}: give the sign to q")
    begins = (cu_seqlens_q, cu_seqlens_k)
    with torch.cuda.device_of(q), torch.autocast(q.device.type, enabled=False):
        if why_not(q, k, v, *begins, max_seqlen_k, causal) is None:
            return ragged.attend(q, k, v, *begins, causal, max_seqlen_k, softmax_scale)
        if _flash_applies(q):
            return _flash(q, k, v, *begins, max_seqlen_q, max_seqlen_k, causal, softmax_scale)
        return _formula(q, k, v, *begins, causal, softmax_scale)


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    ragged.check_ragged(q, k, v, cu_seqlens_q, cu_seqlens_k)
    return q.new_empty(q.shape), _empty_lse(q)


@library.custom_op("kperf::attention_varlen_backward", mutates_args=())
def _backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, o: Tensor, lse: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool, softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of q, k and v, contiguous."""
    given = (grad_o, q, k, v, cu_seqlens_q, cu_seqlens_k, o, lse)
    with torch.cuda.device_of(q), torch.autocast(q.device.type, enabled=False):
        if _flash_applies(q):
            return _flash_backward(*given, max_seqlen_q, max_seqlen_k, causal, softmax_scale)
        return _formula_backward(*given, causal, softmax_scale)


@_backward.register_fake
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, max_seqlen_q, max_seqlen_k, causal, softmax_scale = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(*tensors, o, lse)
    ctx.rest = (max_seqlen_q, max_seqlen_k, causal, softmax_scale)


def _gradients(ctx: Any, grad_o: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_backward(grad_o, *ctx.saved_tensors, *ctx.rest), *(None,) * 6


_forward.register_autograd(_gradients, setup_context=_save)


def _empty_lse(q: Tensor) -> Tensor:
    return q.new_empty((q.shape[1], q.shape[0]), dtype=accumulated(q))


def _flash_applies(q: Tensor) -> bool:
    """Whether torch's FlashAttention-2 computes this (FlashAttention-2's README: head dimensions up to 256)."""
    return q.is_cuda and q.dtype in (torch.bfloat16, torch.float16) and q.shape[2] <= 256 and q.shape[2] % 8 == 0


def _flash(
    q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool, softmax_scale: float,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    lengths = (begins_q, begins_k, max_seqlen_q, max_seqlen_k)
    o, lse, *_ = torch.ops.aten._flash_attention_forward(
        *map(rows_aligned, (q, k, v)), *lengths, 0.0, causal, False, scale=softmax_scale
    )
    return o, lse.masked_fill(lse == torch.inf, -torch.inf)  # inf is FlashAttention-2's of what attends to nothing


def _flash_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, o: Tensor, lse: Tensor,
    max_seqlen_q: int, max_seqlen_k: int, causal: bool, softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    no_dropout = (q.new_empty(2, dtype=torch.uint64), q.new_empty(0, dtype=torch.uint64))
    lengths = (begins_q, begins_k, max_seqlen_q, max_seqlen_k)
    dq, dk, dv = torch.ops.aten._flash_attention_backward(
        *map(rows_aligned, (grad_o, q, k, v)), o, lse, *lengths, 0.0, causal, *no_dropout, scale=softmax_scale
    )
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


def _formula(
    q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, causal: bool, softmax_scale: float
) -> tuple[Tensor, Tensor]:
    o, lse = q.new_zeros(q.shape), _empty_lse(q).fill_(-torch.inf)
    for rows, keys in _sequences(begins_q, begins_k):
        q_heads, k_heads, v_heads = map(_heads_first, (q[rows], k[keys], v[keys]))
        sequence_o, sequence_lse = formula(q_heads, k_heads, v_heads, causal, softmax_scale)
        o[rows], lse[:, rows] = sequence_o[0].transpose(0, 1), sequence_lse[0]
    return o, lse


def _formula_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, o: Tensor, lse: Tensor,
    causal: bool, softmax_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    dq, dk, dv = (tensor.new_zeros(tensor.shape) for tensor in (q, k, v))
    for rows, keys in _sequences(begins_q, begins_k):
        grad, q_heads, o_heads = (_heads_first(tensor[rows]) for tensor in (grad_o, q, o))
        k_heads, v_heads = (_heads_first(tensor[keys]) for tensor in (k, v))
        gradients = formula_backward(
            grad, q_heads, k_heads, v_heads, o_heads, lse[None, :, rows], causal, softmax_scale
        )
        dq[rows], dk[keys], dv[keys] = (gradient[0].transpose(0, 1) for gradient in gradients)
    return dq, dk, dv


def _sequences(begins_q: Tensor, begins_k: Tensor) -> list[tuple[slice, slice]]:
    """Rows of q, and of k, of each sequence that has both; waits for the device."""
    rows_of, keys_of = (list(starmap(slice, pairwise(begins.tolist()))) for begins in (begins_q, begins_k))
    return [
        (rows, keys)
        for rows, keys in zip(rows_of, keys_of, strict=True)
        if rows.stop > rows.start and keys.stop > keys.start
    ]


def _heads_first(tensor: Tensor) -> Tensor:
    """[rows, heads, head_dim] as [1, heads, rows, head_dim]."""
    return tensor.transpose(0, 1)[None]
