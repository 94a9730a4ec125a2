"""The implementations that are compared, by key. All take q, k, v as [batch, heads, seq_len, head_dim].

`bind` prepares a call outside the timed region: it copies the inputs into the layout that the implementation was
written for. The call itself allocates its outputs, as users' calls do, and returns (o, lse): o as [batch, heads,
seq_len, head_dim] (a view if need be), lse as float32 [batch, heads, seq_len], or None where the library keeps it.
"""

import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

import torch
from torch.nn.attention import SDPBackend
from triton.tools.tensor_descriptor import TensorDescriptor

from kperf.attention import configs, libraries, overrides, views
from kperf.attention.kernels import stock
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS, attn_fwd
from kperf.attention.libraries import Call, rows_first, sdpa
from kperf.attention.operands import as_rows, of_all_heads, refuse_gradients, why_not_here, workload_of
from kperf.attention.overrides import Override, specialization_of
from kperf.attention.style import Style
from kperf.attention.variants import TILE_ROWS, VARIANTS
from kperf.attention.workload import Workload
from kperf.errors import UsageError
from kperf.installation import why_missing
from kperf.record.device import sm_count

Bind = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool, float], Call]
Launch = Callable[..., object]
"""Runs `attn_fwd` on its runtime arguments, in order."""
FORWARD_ONLY = "it computes forward only"
"""Why an implementation refuses a backward pass."""


@dataclass(frozen=True)
class Implementation:
    """Something that computes attention; with a `style` it is a line of `make attention`.

    It is a bar of Fig. 12 and of `make power` too, unless it is `compared_only`.
    """

    key: str
    label: str
    bind: Bind
    unsupported: Callable[[Workload], str | None] = lambda _: None
    """Why it cannot run a workload on any machine (one sentence), or None."""
    missing: Callable[[], str | None] = lambda: None
    """Why it cannot run on this machine (one sentence with the fix), or None."""
    override: Callable[[Workload], Override | None] = lambda _: None
    """The override that a workload is run with, for its hash in the record."""
    note: Callable[[], str] = lambda: ""
    """What the last call ran with, for the record: the autotuner's choice."""
    style: Style | None = None
    """How it is drawn; without one it is measured only where it is named."""
    compared_only: bool = False
    """Whether it is no bar of Fig. 12."""
    left_out: Callable[[Workload], str | None] = lambda _: None
    """Why a figure does without its bar (one sentence), though it can run the workload; or None."""
    compared_with: tuple[str, ...] = ()
    """Keys of those over which tables give its speedup."""
    grouped: bool = False
    """Whether `bind` takes fewer heads of k and v as they are; the others get them repeated."""
    differentiable: bool = False
    """Whether autograd differentiates its calls."""
    on_cpu: Literal["neither", "forward", "both"] = "neither"
    """Which passes torch computes on the CPU too, where a machine without a GPU can hold them against float32."""
    tolerance: float = 1.0
    """How many times the error of kernels with float32 scores is right for it."""

    def refuses(self, workload: Workload) -> str | None:
        """Why it cannot run a workload on any machine (one sentence), or None."""
        if workload.backward and not self.differentiable:
            return FORWARD_ONLY
        return self.unsupported(workload)

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
        """The call on k and v of any number of heads that divides q's."""
        if not self.grouped:
            k, v = of_all_heads(q, k, v)
        return self.bind(q, k, v, causal, sm_scale)

    def backward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, do: torch.Tensor, causal: bool, sm_scale: float
    ) -> Callable[[], tuple[torch.Tensor, ...]]:
        """A call that returns dq, dk, dv as often as one likes; the forward pass runs here, once.

        do: the gradient of o, [batch, heads, seq_len, head_dim]. Its kernels run on the stream that is current here.
        """
        leaves = q, k, v = q.detach(), k.detach(), v.detach()
        for leaf in leaves:
            leaf.requires_grad_()
        with torch.enable_grad():
            o, _ = self.forward(q, k, v, causal, sm_scale)()
        laid_out = torch.empty_like(o).copy_(do)  # in memory as o, as a later layer's gradient is
        return lambda: torch.autograd.grad(o, leaves, laid_out, retain_graph=True)


def _fa2(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    if q.is_cuda and importlib.util.find_spec("flash_attn"):
        from flash_attn import flash_attn_func

        return _rows_first(flash_attn_func, q, k, v, causal, sm_scale)
    return sdpa(SDPBackend.FLASH_ATTENTION, q, k, v, causal, sm_scale)


def _fa3(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    from fa3_fwd_interface import flash_attn_func

    return _rows_first(flash_attn_func, q, k, v, causal, sm_scale)


def _fa3_views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    from fa3_fwd_interface import flash_attn_func

    return _rows_first(flash_attn_func, q, k, v, causal, sm_scale, copy=False)


def _fa3_missing() -> str | None:
    installed = importlib.util.find_spec("fa3_fwd_interface")
    return None if installed else why_missing("fa3-fwd")


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
    rows = rows_first(q, k, v) if copy else [tensor.transpose(1, 2) for tensor in (q, k, v)]

    def call() -> tuple[torch.Tensor, torch.Tensor]:
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


def _too_wide_for_attn_fwd(workload: Workload) -> str | None:
    fits = workload.head_dim <= 128
    return None if fits else f"its tiles of head_dim {workload.head_dim} take more shared memory than a block has"


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


def _views(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float) -> Call:
    """As models call it: on [batch, seq_len, heads, head_dim]."""
    refuse_gradients(q, k, v)
    if reason := views.plan(q, k, v, causal).why_not:
        raise UsageError(reason)
    q, k, v = (tensor.transpose(1, 2) for tensor in rows_first(q, k, v))
    return lambda: views.attend(q, k, v, causal, sm_scale)


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
        missing=libraries.nvidia_only,
        style=variant.style,
        compared_with=variant.compared_with,
    )


IMPLEMENTATIONS = {
    implementation.key: implementation
    for implementation in (
        Implementation(
            "fa2", "FA2", _fa2, style=Style("#999999", marker="s"), grouped=True, differentiable=True, on_cpu="both"
        ),
        Implementation(
            "cudnn",
            "cuDNN",
            partial(sdpa, SDPBackend.CUDNN_ATTENTION),
            missing=libraries.nvidia_only,
            style=Style("#56b4e9", "....", marker="^"),
            grouped=True,
            differentiable=True,
        ),
        Implementation("fa3", "FA3", _fa3, _fa3_unsupported, _fa3_missing, style=Style("#0072b2"), grouped=True),
        Implementation(
            "triton",
            "Triton",
            _triton,
            note=lambda: stock.ran_with(warp_specialize=False),
            style=Style("#f0e442", marker="D"),
            left_out=_autotuned,
        ),
        Implementation(
            "triton_autows",
            "Triton auto-WS",
            _triton_autows,
            _autows_unsupported,
            libraries.nvidia_only,
            note=lambda: stock.ran_with(warp_specialize=True),
            style=Style("#e69f00", "---", marker="v"),
            left_out=_autotuned,
        ),
        *(_variant(key) for key in VARIANTS),
        Implementation(
            "improved_plus_views",
            "Improved+ on views",
            _views,
            _too_wide_for_attn_fwd,
            libraries.nvidia_only,
            style=Style("#00441b", marker="*"),
            compared_only=True,
            grouped=True,
        ),
        Implementation("fa3_views", "FA3, transposed views", _fa3_views, _fa3_unsupported, _fa3_missing, grouped=True),
        Implementation(
            "attn_fwd", "attn_fwd, not overridden", bind_attn_fwd, _too_wide_for_attn_fwd, libraries.nvidia_only
        ),
        Implementation(
            "eager",
            "eager",
            libraries.eager,
            style=Style("#000000", marker="x"),
            compared_only=True,
            differentiable=True,
            on_cpu="both",
            tolerance=2.0,
        ),
        Implementation(
            "sdpa_math",
            "SDPA math",
            partial(sdpa, SDPBackend.MATH),
            style=Style("#8c564b", marker="+"),
            compared_only=True,
            grouped=True,
            differentiable=True,
            on_cpu="both",
        ),
        Implementation(
            "sdpa_efficient",
            "SDPA efficient",
            partial(sdpa, SDPBackend.EFFICIENT_ATTENTION),
            style=Style("#7f7f00", marker="P"),
            compared_only=True,
            differentiable=True,
        ),
        Implementation(
            "flex",
            "compiled flex_attention",
            libraries.flex,
            style=Style("#7b3294", marker="h"),
            compared_only=True,
            grouped=True,
            differentiable=True,
            on_cpu="forward",
        ),
        Implementation(
            "tilelang",
            "TileLang",
            libraries.tilelang,
            missing=libraries.tilelang_missing,
            note=partial(libraries.version, "tilelang"),
            style=Style("#c51b7d", marker="*"),
            compared_only=True,
            grouped=True,
        ),
        Implementation(
            "aiter",
            "AITER (CK)",
            libraries.aiter,
            missing=libraries.aiter_missing,
            style=Style("#e31a1c", marker="d"),
            compared_only=True,
            grouped=True,
        ),
        Implementation(
            "xformers",
            "xFormers",
            libraries.xformers,
            missing=partial(libraries.missing, "xformers", "xformers"),
            note=partial(libraries.version, "xformers"),
            style=Style("#1b7837", marker="<"),
            compared_only=True,
            differentiable=True,
        ),
        Implementation(
            "flashinfer",
            "FlashInfer",
            libraries.flashinfer,
            missing=partial(libraries.missing, "flashinfer", "flashinfer-python", pinned=True),
            note=partial(libraries.version, "flashinfer-python"),
            style=Style("#b2182b", marker=">"),
            compared_only=True,
            grouped=True,
        ),
        Implementation(
            "transformer_engine",
            "TransformerEngine",
            libraries.transformer_engine,
            missing=partial(libraries.missing, "transformer_engine", "transformer-engine[core-cu13,pytorch]"),
            note=partial(libraries.version, "transformer-engine"),
            style=Style("#2166ac", marker="p"),
            compared_only=True,
            grouped=True,
            differentiable=True,
        ),
    )
}
"""The only list of implementations: bars, labels, colours, ratios and the words that commands know come from here."""

COMPARED = tuple(key for key, implementation in IMPLEMENTATIONS.items() if implementation.style)
"""The lines of `make attention`, in the order they are drawn."""

FIG12 = tuple(key for key in COMPARED if not IMPLEMENTATIONS[key].compared_only)
"""The bars of Fig. 12, in the order they are drawn."""

RATIOS = tuple((key, other) for key in IMPLEMENTATIONS for other in IMPLEMENTATIONS[key].compared_with)
"""Whose speedup over whom the tables give: (ours, theirs)."""


def implementations(keys: Sequence[str]) -> list[Implementation]:
    """Look the keys up; raises `UsageError` for an unknown one."""
    for key in keys:
        if key not in IMPLEMENTATIONS:
            raise UsageError(f"unknown implementation {key!r}: choose from {', '.join(IMPLEMENTATIONS)}")
    return [IMPLEMENTATIONS[key] for key in keys]
