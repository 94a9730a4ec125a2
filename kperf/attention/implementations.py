"""The implementations that are compared, by key. All take q, k, v as [batch, heads, seq_len, head_dim].

`bind` prepares a call outside the timed region: it copies the inputs into the layout that the implementation was
written for. The call itself allocates its outputs, as users' calls do, and returns (o, lse): o as [batch, heads,
seq_len, head_dim] (a view if need be), lse as float32 [batch, heads, seq_len], or None where the library keeps it.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from triton.tools.tensor_descriptor import TensorDescriptor

from kperf.attention import configs, overrides
from kperf.attention.kernels import stock
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS, attn_fwd
from kperf.attention.look import Look
from kperf.attention.operands import as_rows, refuse_gradients, why_not_here, workload_of
from kperf.attention.overrides import Override, specialization_of
from kperf.attention.variants import TILE_ROWS, VARIANTS
from kperf.attention.workload import Workload
from kperf.errors import UsageError
from kperf.record.device import sm_count

Output = tuple[torch.Tensor, torch.Tensor | None]
Call = Callable[[], Output]
Bind = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], Call]
Launch = Callable[..., object]
"""Runs `attn_fwd` on its runtime arguments, in order."""


@dataclass(frozen=True)
class Implementation:
    """Something that computes attention forward; with a `look` it is a bar of Fig. 12 and of `make power`."""

    key: str
    label: str
    bind: Bind
    unsupported: Callable[[Workload], str | None] = lambda _: None
    """Why it cannot run a workload on any machine (one sentence), or None."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run on this machine (one sentence with the mend), or None."""
    override: Callable[[Workload], Override | None] = lambda _: None
    """The override that a workload is run with, for its hash in the record."""
    note: Callable[[], str] = lambda: ""
    """What the last call ran with, for the record: the autotuner's choice."""
    look: Look | None = None
    """How its bar is drawn; without one it is measured only where it is named."""
    left_out: Callable[[Workload], str | None] = lambda _: None
    """Why a figure does without its bar (one sentence), though it can run the workload; or None."""
    compared_with: tuple[str, ...] = ()
    """Keys of those over which tables give its speedup."""


def _fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    if importlib.util.find_spec("flash_attn"):
        from flash_attn import flash_attn_func

        return _rows_first(flash_attn_func, q, k, v, causal, sm_scale)
    return _sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal, sm_scale)


def _cudnn(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    return _sdpa(SDPBackend.CUDNN_ATTENTION, q, k, v, causal, sm_scale)


def _sdpa(
    backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> Call:
    def call() -> Output:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale), None

    return call


def _fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    from fa3_fwd_interface import flash_attn_func

    return _rows_first(flash_attn_func, q, k, v, causal, sm_scale)


def _fa3_views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    from fa3_fwd_interface import flash_attn_func

    return _rows_first(flash_attn_func, q, k, v, causal, sm_scale, copy=False)


def _fa3_missing() -> str | None:
    installed = importlib.util.find_spec("fa3_fwd_interface")
    return None if installed else "fa3-fwd is not installed: `make setup` installs it"


def _fa3_unsupported(workload: Workload) -> str | None:
    return None if workload.dtype == "bfloat16" else "the fa3-fwd wheel holds bfloat16 kernels only"


def _rows_first(
    flash_attn_func: Callable[..., tuple[torch.Tensor, torch.Tensor]],
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float,
    *,
    copy: bool = True,
) -> Call:
    """FlashAttention's own layout: [batch, seq_len, heads, head_dim]; without `copy` views that only look like it."""
    rows = [tensor.transpose(1, 2) for tensor in (q, k, v)]
    if copy:
        rows = [tensor.contiguous() for tensor in rows]

    def call() -> Output:
        o, lse, *_ = flash_attn_func(*rows, softmax_scale=sm_scale, causal=causal, return_attn_probs=True)
        return o.transpose(1, 2), lse

    return call


def _triton(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    config = configs.configured(workload_of(q, k, v, causal))
    return lambda: stock.forward(q, k, v, causal, sm_scale, config=config)


def _triton_autows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    return lambda: stock.forward(q, k, v, causal, sm_scale, warp_specialize=True)


def _autows_unsupported(workload: Workload) -> str | None:
    return "Triton 3.6.0 fails to warp-specialise the two loops of the causal kernel" if workload.causal else None


def _autotuned(workload: Workload) -> str | None:
    of_the_paper = (workload.head_dim, workload.dtype, workload.inputs) == (128, "bfloat16", "normal")
    return None if of_the_paper else "left out here, as autotuning it takes longer than all the rest"


def bind_attn_fwd(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    sm_scale: float,
    override: Override | None = None,
) -> Call:
    """`attn_fwd`, plain or with an override in its place.

    Views and fewer heads of k and v are copied, once. Raises `UsageError` for what it cannot run on (`operands`).
    """
    workload = workload_of(q, k, v, causal)
    refuse_gradients(q, k, v)
    if reason := why_not_here(q):
        raise UsageError(reason)
    run: Launch
    if override is None:
        constexprs = specialization_of(workload).constexprs()
        # As many blocks as an override has: TRITON_KERNEL_OVERRIDE may put one in place behind our back.
        run = partial(attn_fwd[(workload.rows // TILE_ROWS,)], **constexprs, num_warps=4)
    else:
        run = override.launcher(workload.rows, sm_count())
    return call_attn_fwd(run, *as_rows(q, k, v), sm_scale)


def call_attn_fwd(
    run: Launch, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, sm_scale: float
) -> Callable[[], tuple[torch.Tensor, torch.Tensor]]:
    """The call of a launcher of `attn_fwd` on q, k, v as `operands.as_rows` gives them."""
    batch, heads, seq_len, head_dim = q.shape
    n_rows = batch * heads * seq_len

    def descriptor(tensor: torch.Tensor, rows: int) -> TensorDescriptor:
        return TensorDescriptor(tensor.view(n_rows, head_dim), [n_rows, head_dim], [head_dim, 1], [rows, head_dim])

    inputs = [descriptor(q, Q_BOX_ROWS), descriptor(k, KV_BOX_ROWS), descriptor(v, KV_BOX_ROWS)]

    def call() -> tuple[torch.Tensor, torch.Tensor]:
        o = torch.empty_like(q)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        run(*inputs, descriptor(o, Q_BOX_ROWS), lse, sm_scale, seq_len, n_rows)
        return o, lse

    return call


def from_override(key: str, label: str, find: Callable[[Workload], Override]) -> Implementation:
    """The implementation that runs `attn_fwd` with what `find` returns in its place."""

    def bind(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
        return bind_attn_fwd(q, k, v, causal, sm_scale, find(workload_of(q, k, v, causal)))

    return Implementation(key, label, bind, override=find)


def _variant(key: str) -> Implementation:
    def find(workload: Workload) -> Override:
        return overrides.find(key, specialization_of(workload))

    def unsupported(workload: Workload) -> str | None:
        special = specialization_of(workload)
        if special in VARIANTS[key].specializations:
            return None
        return f"ttgir/{key}/ holds no {special.file_name}"

    variant = VARIANTS[key]
    return replace(
        from_override(key, variant.label, find),
        unsupported=unsupported,
        look=variant.look,
        compared_with=variant.compared_with,
    )


IMPLEMENTATIONS = {
    implementation.key: implementation
    for implementation in (
        Implementation("fa2", "FA2", _fa2, look=Look("#999999")),
        Implementation("cudnn", "cuDNN", _cudnn, look=Look("#56b4e9", "....")),
        Implementation("fa3", "FA3", _fa3, _fa3_unsupported, _fa3_missing, look=Look("#0072b2")),
        Implementation(
            "triton",
            "Triton",
            _triton,
            note=lambda: stock.ran_with(warp_specialize=False),
            look=Look("#f0e442"),
            left_out=_autotuned,
        ),
        Implementation(
            "triton_autows",
            "Triton auto-WS",
            _triton_autows,
            _autows_unsupported,
            note=lambda: stock.ran_with(warp_specialize=True),
            look=Look("#e69f00", "---"),
            left_out=_autotuned,
        ),
        *(_variant(key) for key in VARIANTS),
        Implementation("fa3_views", "FA3, transposed views", _fa3_views, _fa3_unsupported, _fa3_missing),
        Implementation("attn_fwd", "attn_fwd, not overridden", bind_attn_fwd),
    )
}
"""The only list of implementations: bars, labels, colours, ratios and the words that commands know come from here."""

FIG12 = tuple(key for key, implementation in IMPLEMENTATIONS.items() if implementation.look)
"""The bars of Fig. 12, in the order they are drawn."""

RATIOS = tuple((key, other) for key in IMPLEMENTATIONS for other in IMPLEMENTATIONS[key].compared_with)
"""Whose speedup over whom the tables give: (ours, theirs)."""


def implementations(keys: Sequence[str]) -> list[Implementation]:
    """Look the keys up; raises `UsageError` for an unknown one."""
    for key in keys:
        if key not in IMPLEMENTATIONS:
            raise UsageError(f"unknown implementation {key!r}: choose from {', '.join(IMPLEMENTATIONS)}")
    return [IMPLEMENTATIONS[key] for key in keys]
