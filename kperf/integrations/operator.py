"""`kperf::attention`: our kernels, and FA3, as an operator of torch.

    from kperf.integrations.operator import attention
    o = attention(q, k, v, causal=True)

Improved+ is its Gluon kernel, which reads q, k and v where they lie (`kperf.attention.views`); vanilla and improved are
overrides, for which they are copied into plain rows.

The operator is opaque to torch.compile (no graph break), neither synchronises nor reads from the GPU (so CUDA graphs
capture it once it has run), counts its FLOPs, and has a backward pass from the saved o and log-sum-exp: cuDNN's or,
where that does not apply, FlashAttention-2's, both of which come with torch. Where the implementation that is asked for
does not apply, FlashAttention-2 computes the forward pass, and where that does not apply either (tensors on the CPU,
float32, float64) the formula itself, whose scores take O(seq_len^2) memory; `why_not` says which and why.
"""

import functools
from collections.abc import Callable
from operator import is_
from typing import Any, NamedTuple

import torch
from torch import library
from torch.backends.cuda import SDPAParams, can_use_cudnn_attention, can_use_flash_attention
from torch.utils.flop_counter import register_flop_formula

from kperf.attention import overrides, views
from kperf.attention.bounded import Bounded
from kperf.attention.implementations import IMPLEMENTATIONS, Launch, call_attn_fwd
from kperf.attention.operands import as_rows, check_attention, default_scale, rows_aligned, why_not_here, workload_of
from kperf.attention.overrides import Override, specialization_of
from kperf.attention.variants import VARIANTS, Specialization
from kperf.compat.torch import alike, observed
from kperf.errors import UsageError
from kperf.integrations.formula import accumulated, formula, formula_backward
from kperf.record.device import sm_count

IMPLEMENTED = (*VARIANTS, "fa3")
"""What `implementation` may be."""

LAUNCHED = "improved_plus"
"""The one that is launched without an override, on tensors as they lie."""

Tensor = torch.Tensor
Shape = tuple[int, ...]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: bool = False,
    sm_scale: float | None = None,
    implementation: str = "improved_plus",
) -> Tensor:
    """softmax(q k^T * sm_scale) v, like torch's scaled_dot_product_attention, with gradients for q, k and v.

    q: [batch, heads, seq_len, head_dim]; k, v: the same, or of fewer heads, which groups of q's heads share; views
    of [batch, seq_len, heads, head_dim] included, and o is one. k and v may have another seq_len, if `causal` no
    smaller one: the last row of q attends to all of them. sm_scale: head_dim ** -0.5 if not given. Under torch.autocast
    all are cast to its dtype. `torch.ops.kperf.attention` gives the log-sum-exp too, for a positive sm_scale. Raises
    `UsageError` for what is no attention, and for an unknown implementation.
    """
    if not torch.compiler.is_compiling():
        before = _before.get((q.shape, k.shape, causal, sm_scale, implementation))
        if before is not None and before.serves(q, k, v):
            return before.plan.run(q, k, v, causal, before.scale, with_lse=False)[0]
    given = q, k, v
    kind = q.device.type
    if kind != "meta" and torch.is_autocast_enabled(kind):  # as torch does with its own; of meta it does not answer
        q, k, v = (tensor.to(torch.get_autocast_dtype(kind)) for tensor in (q, k, v))
    scale = default_scale(q) if sm_scale is None else float(sm_scale)
    if sm_scale is not None and scale <= 0:  # kernels scale what is masked already, and -inf has to stay that
        q, scale = (-q, -scale) if scale else (q * 0, 1.0)
    o: Tensor
    if implementation == LAUNCHED and not observed(q, k, v):  # an operator of Python takes longer than the launch
        with torch.cuda.device_of(q):
            plan = views.plan(q, k, v, causal)
            if plan.why_not is None:
                if all(map(is_, given, (q, k, v))):  # nothing was cast or negated
                    now = _Before(alike(q, k, v), q.device, plan, scale)
                    _before[q.shape, k.shape, causal, sm_scale, implementation] = now
                return plan.run(q, k, v, causal, scale, with_lse=False)[0]
    o = _forward(q, k, v, causal, scale, implementation)[0]
    return o


class _Before(NamedTuple):
    """What a call of `attention` found out, for later ones on tensors that are alike."""

    alike: Callable[..., bool]
    device: torch.device
    plan: views.Plan
    scale: float

    def serves(self, q: Tensor, k: Tensor, v: Tensor) -> bool:
        """Whether a call on these is the same: on such tensors, whose device is the current one, and not observed."""
        return self.alike(q, k, v) and (self.device.type != "cuda" or self.device.index == torch.cuda.current_device())


_before: Bounded[Any, _Before] = Bounded(1024)


def why_not(q: Tensor, k: Tensor, v: Tensor, causal: bool, implementation: str = "improved_plus") -> str | None:
    """None if the implementation itself computes this, else the sentence that says why the fallback does.

    Raises `UsageError` as `attention` does.
    """
    if implementation == LAUNCHED:
        with torch.cuda.device_of(q):
            return views.plan(q, k, v, causal).why_not
    _check(q, k, v, causal, implementation)
    chosen = IMPLEMENTATIONS[implementation]
    try:
        workload = workload_of(q, k, v, causal)
    except UsageError as error:
        return str(error)
    return chosen.unsupported(workload) or why_not_here(q) or chosen.missing()


@library.custom_op("kperf::attention", mutates_args=())
def _forward(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float, implementation: str
) -> tuple[Tensor, Tensor]:
    """o, and the natural log-sum-exp of each row [batch, heads, seq_len] in float32 (float64 for float64)."""
    if not sm_scale > 0:
        raise UsageError(
            f"torch.ops.kperf.attention takes a positive sm_scale, not {sm_scale}: "
            "kperf.integrations.operator.attention takes any"
        )
    with torch.cuda.device_of(q), torch.autocast(q.device.type, enabled=False):
        if why_not(q, k, v, causal, implementation) is None:
            compute = _LAUNCHERS.get(implementation) or functools.partial(_override, implementation)
        else:
            compute = _flash if _flash_applies(q, k, v, causal) else formula
        o, lse = compute(q, k, v, causal, sm_scale)
    return (o if o.stride() == _o_strides(q, implementation) else _empty_o(q, implementation).copy_(o)), lse


@_forward.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, causal: bool, _: float, implementation: str) -> tuple[Tensor, Tensor]:
    _check(q, k, v, causal, implementation)
    return _empty_o(q, implementation), q.new_empty(q.shape[:3], dtype=accumulated(q))


@library.custom_op("kperf::attention_backward", mutates_args=())
def _backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, sm_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v, in the memory of [batch, seq_len, heads, head_dim]."""
    if _cudnn_applies(q, k, v, causal):
        compute = _cudnn_backward
    else:
        compute = _flash_backward if _flash_applies(q, k, v, causal) else formula_backward
    with torch.autocast(q.device.type, enabled=False):
        dq, dk, dv = map(_rows_first, compute(grad_o, q, k, v, o, lse, causal, sm_scale))
    return dq, dk, dv


@_backward.register_fake
def _(_: Tensor, q: Tensor, k: Tensor, v: Tensor, *__: Any) -> tuple[Tensor, Tensor, Tensor]:
    return _empty_rows_first(q), _empty_rows_first(k), _empty_rows_first(v)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    q, k, v, ctx.causal, ctx.sm_scale, _ = inputs
    o, lse = output
    ctx.mark_non_differentiable(lse)
    ctx.save_for_backward(q, k, v, o, lse)


def _gradients(ctx: Any, grad_o: Tensor, _: Tensor | None) -> tuple[Tensor | None, ...]:
    return *_backward(grad_o, *ctx.saved_tensors, ctx.causal, ctx.sm_scale), None, None, None


_forward.register_autograd(_gradients, setup_context=_save)


@register_flop_formula(torch.ops.kperf.attention)  # type: ignore[untyped-decorator]
def _forward_flops(q: Shape, k: Shape, _: Shape, causal: bool, *__: Any, **___: Any) -> int:
    """As `Workload.flops`: two products, half of them under a causal mask (torch counts SDPA's in full)."""
    batch, heads, q_len, head_dim = q
    return 2 * batch * heads * q_len * head_dim * (2 * k[2] - (q_len if causal else 0))


@register_flop_formula(torch.ops.kperf.attention_backward)  # type: ignore[untyped-decorator]
def _backward_flops(_: Shape, q: Shape, k: Shape, v: Shape, *rest: Any, **__: Any) -> int:
    """Five products where the forward pass has two (FlashAttention-3, arXiv 2407.08608, section 4.1)."""
    *_outputs, causal, _sm_scale = rest
    return _forward_flops(q, k, v, causal) * 5 // 2


def _check(q: Tensor, k: Tensor, v: Tensor, causal: bool, implementation: str) -> None:
    if implementation not in IMPLEMENTED:
        raise UsageError(f"kperf::attention has no {implementation!r}: choose from {', '.join(IMPLEMENTED)}")
    check_attention(q, k, v, causal)


def _empty_o(q: Tensor, implementation: str) -> Tensor:
    return q.new_empty_strided(q.shape, _o_strides(q, implementation))


def _o_strides(q: Tensor, implementation: str) -> Shape:
    """Of o as the implementation writes it: overrides plain, the others [batch, seq_len, heads, head_dim]."""
    if implementation in _LAUNCHERS:
        return views.rows_first_strides(q.shape)
    _, heads, seq_len, head_dim = q.shape
    return heads * seq_len * head_dim, seq_len * head_dim, head_dim, 1


def _empty_rows_first(tensor: Tensor) -> Tensor:
    return tensor.new_empty_strided(tensor.shape, views.rows_first_strides(tensor.shape))


def _rows_first(tensor: Tensor) -> Tensor:
    """In the memory of [batch, seq_len, heads, head_dim]; the tensor itself where it lies so."""
    return tensor.transpose(1, 2).contiguous().transpose(1, 2)


def _override(variant: str, q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> tuple[Tensor, Tensor]:
    workload = workload_of(q, k, v, causal)
    run = _launcher(variant, specialization_of(workload), workload.rows, q.device)
    return call_attn_fwd(run, *as_rows(q, k, v), sm_scale)()


@functools.cache
def _found(variant: str, special: Specialization) -> Override:
    """One a process: what it has proven once it does not prove again."""
    return overrides.find(variant, special)


@functools.lru_cache(maxsize=1024)
def _launcher(variant: str, special: Specialization, n_rows: int, _device: torch.device) -> Launch:
    """For calls on so many rows on this device, the current one."""
    return _found(variant, special).launcher(n_rows, sm_count())


def _fa3(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> tuple[Tensor, Tensor]:
    from fa3_fwd_interface import flash_attn_func

    rows = (rows_aligned(tensor).transpose(1, 2) for tensor in (q, k, v))
    o, lse, *_ = flash_attn_func(*rows, softmax_scale=sm_scale, causal=causal, return_attn_probs=True)
    return o.transpose(1, 2), lse


_LAUNCHERS: dict[str, Callable[..., tuple[Tensor, Tensor]]] = {LAUNCHED: views.attend, "fa3": _fa3}
"""Those that take q, k and v as they lie, and hand out o as a view of [batch, seq_len, heads, head_dim]."""


def _flash_applies(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """Whether torch's FlashAttention-2 runs here on these tensors, by torch's own rule."""
    return q.is_cuda and _aligned_alike(q, k, causal) and can_use_flash_attention(_asked(q, k, v, causal))


def _cudnn_applies(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> bool:
    """As `_flash_applies`; the rule says no where deterministic algorithms are asked for."""
    return q.is_cuda and _aligned_alike(q, k, causal) and can_use_cudnn_attention(_asked(q, k, v, causal))


def _aligned_alike(q: Tensor, k: Tensor, causal: bool) -> bool:
    """Whether torch's causal mask is ours: of a longer k torch's starts from the first rows, ours from the last."""
    return not causal or q.shape[2] == k.shape[2]


def _asked(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> SDPAParams:
    return SDPAParams(q, k, v, None, 0.0, causal, k.shape[1] < q.shape[1])


def _flash(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> tuple[Tensor, Tensor]:
    q, k, v = map(rows_aligned, (q, k, v))
    o, lse, *_ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, scale=sm_scale)
    return o, lse


def _flash_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, sm_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    grad_o, q, k, v = map(rows_aligned, (grad_o, q, k, v))
    lengths = (None, None, q.shape[2], k.shape[2])  # sequences of one length have no tables of where each begins
    no_dropout = (q.new_empty(2, dtype=torch.uint64), q.new_empty(0, dtype=torch.uint64))
    dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_backward(
        grad_o, q, k, v, o, lse, *lengths, 0.0, causal, *no_dropout, scale=sm_scale
    )
    return dq, dk, dv


def _cudnn_backward(
    grad_o: Tensor, q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, causal: bool, sm_scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """The faster one of torch's two (`make attention`).

    torch keeps the kernels that cuDNN makes by the memory layouts of q, k and v and by the probability of dropout, not
    by those of o and its gradient, of which every later call then takes what the first one had: with another layout
    torch 2.11 gives gradients of noise. So o and its gradient always lie in the same way here, and the probability is
    -0.0, which is no dropout and which nobody else calls with.
    """
    grad_o, q, k, v = map(rows_aligned, (_rows_first(grad_o), q, k, v))
    unused = q.new_empty(0, dtype=torch.int64)
    lengths = (None, None, q.shape[2], k.shape[2])
    dq, dk, dv = torch.ops.aten._scaled_dot_product_cudnn_attention_backward(
        grad_o, q, k, v, _rows_first(o), lse[..., None], unused, unused, None, *lengths, -0.0, causal, scale=sm_scale
    )
    return dq, dk, dv
