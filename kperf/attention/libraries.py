"""Attention as torch and other packages compute it, beside the bars of Fig. 12: from the formula to compiled kernels.

Each function prepares a call as `implementations` describes it. Packages that the lock does not hold are imported where
they are used; `missing` says in one sentence that one is not there.
"""

import importlib.metadata
import importlib.util
import math
import os
import shutil
import warnings
from collections.abc import Callable
from weakref import WeakValueDictionary

import torch
from torch.backends.cuda import (
    SDPAParams,
    can_use_cudnn_attention,
    can_use_efficient_attention,
    can_use_flash_attention,
)
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from kperf.compat.torch import compiled_anew
from kperf.errors import UsageError

Tensor = torch.Tensor
Output = tuple[Tensor, Tensor | None]
Call = Callable[[], Output]

_FUSED = {
    SDPBackend.FLASH_ATTENTION: can_use_flash_attention,
    SDPBackend.EFFICIENT_ATTENTION: can_use_efficient_attention,
    SDPBackend.CUDNN_ATTENTION: can_use_cudnn_attention,
}

_SHAPES = 64
"""So many shapes flex_attention is compiled for in a process: torch stops at 8, and a sweep has more."""


def missing(module: str, distribution: str, *, pinned: bool = False) -> str | None:
    """None if the package is there, else one sentence with the fix, which leaves torch as the lock has it.

    The lock has none of these. `pinned`: requirements/libraries.txt has a release that goes with the lock's torch; what
    the others want of torch and CUDA changes with each release.
    """
    if importlib.util.find_spec(module):
        return None
    if pinned:
        return f"{distribution} is not installed: `make libraries` in a checkout installs it"
    torch_here = importlib.metadata.version("torch")
    return f"{distribution} is not installed: `pip install '{distribution}' torch=={torch_here}` if there is one for it"


def version(distribution: str) -> str:
    """For the record: xformers 0.0.33."""
    return f"{distribution} {importlib.metadata.version(distribution)}"


def eager(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """The formula, an operation of torch after the other: O(seq_len^2) memory, scores rounded to the inputs' dtype."""
    seq_len = q.shape[2]
    above = torch.ones(seq_len, seq_len, dtype=torch.bool, device=q.device).triu(1) if causal else None

    def call() -> Output:
        scores = q @ k.mT * sm_scale
        if above is not None:
            scores = scores.masked_fill(above, -math.inf)
        return scores.softmax(-1) @ v, None

    return call


def sdpa(backend: SDPBackend, q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """torch's scaled_dot_product_attention by one back end; k, v of fewer heads where the back end knows groups.

    Raises `UsageError` with torch's reason where the back end does not compute this on the GPU.
    """
    grouped = k.shape[1] != q.shape[1]
    if q.is_cuda and backend in _FUSED:
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            usable = _FUSED[backend](SDPAParams(q, k, v, None, 0.0, causal, grouped), debug=True)
        if not usable:
            reasons = [str(warning.message).splitlines()[0] for warning in warned] or ["it does not say why"]
            raise UsageError(f"torch's back end {backend.name} refuses: {reasons[0]}")

    def call() -> Output:
        with sdpa_kernel(backend):
            o = scaled_dot_product_attention(q, k, v, is_causal=causal, scale=sm_scale, enable_gqa=grouped)
        return o, None

    return call


def flex(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """torch's flex_attention, compiled; a causal mask as a block mask, which is made beforehand."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # it imports the compiler

    seq_len = q.shape[2]
    mask = create_block_mask(_lower, None, None, seq_len, seq_len, device=q.device) if causal else None
    # Without fullgraph it would fall back on its O(seq_len^2) formula in silence.
    attend = torch.compile(flex_attention, dynamic=False, fullgraph=True)
    grouped = k.shape[1] != q.shape[1]

    def call() -> Output:
        o: Tensor = attend(q, k, v, block_mask=mask, scale=sm_scale, enable_gqa=grouped)  # type: ignore[assignment]
        return o, None

    # A backward pass that is run again and again may not write over what the forward pass saved.
    with compiled_anew(_SHAPES):
        call()
    return call


def _lower(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
    return row >= column


def xformers(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """xFormers' memory_efficient_attention with the kernels that it chooses; [batch, seq_len, heads, head_dim]."""
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    rows = rows_first(q, k, v)
    mask = LowerTriangularMask() if causal else None
    return lambda: (memory_efficient_attention(*rows, attn_bias=mask, scale=sm_scale).transpose(1, 2), None)


def flashinfer(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """FlashInfer's prefill of a ragged batch, planned beforehand; [batch * seq_len, heads, head_dim]."""
    from flashinfer import BatchPrefillWithRaggedKVCacheWrapper

    batch, heads, seq_len, head_dim = q.shape
    wrapper = BatchPrefillWithRaggedKVCacheWrapper(
        torch.empty(256 << 20, dtype=torch.uint8, device=q.device), kv_layout="NHD"
    )
    begins = torch.arange(batch + 1, dtype=torch.int32, device=q.device) * seq_len
    wrapper.plan(
        begins, begins, heads, k.shape[1], head_dim,
        causal=causal, sm_scale=sm_scale, q_data_type=q.dtype, kv_data_type=k.dtype,
    )  # fmt: skip
    flat = [tensor.flatten(0, 1) for tensor in rows_first(q, k, v)]
    return lambda: (wrapper.run(*flat).view(batch, seq_len, heads, head_dim).transpose(1, 2), None)


def transformer_engine(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """TransformerEngine's DotProductAttention with the back end that it chooses; [batch, seq_len, heads, head_dim]."""
    from transformer_engine.pytorch import DotProductAttention

    batch, heads, seq_len, head_dim = q.shape
    attend = DotProductAttention(
        heads, head_dim, num_gqa_groups=k.shape[1], attention_dropout=0.0, qkv_format="bshd",
        attn_mask_type="causal" if causal else "no_mask", softmax_scale=sm_scale,
    )  # fmt: skip
    rows = rows_first(q, k, v)
    return lambda: (attend(*rows).view(batch, seq_len, heads, head_dim).transpose(1, 2), None)


def tilelang(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """Our loop in TileLang, which is a language as Triton is: its compiler pipelines and warp-specialises it."""
    from kperf.attention.kernels import in_tilelang

    batch, heads, seq_len, head_dim = q.shape
    kernel = in_tilelang.compiled(
        batch=batch, heads=heads, kv_heads=k.shape[1], seq_len=seq_len, head_dim=head_dim,
        dtype=str(q.dtype).removeprefix("torch."), causal=causal, sm_scale=sm_scale,
    )  # fmt: skip
    operands = [tensor.contiguous() for tensor in (q, k, v)]

    def call() -> Output:
        o, lse = kernel(*operands)
        return o, lse

    return call


def tilelang_missing() -> str | None:
    """As `missing`; and TileLang compiles with nvcc."""
    places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/cuda/bin"])
    if (reason := missing("tilelang", "tilelang", pinned=True)) or shutil.which("nvcc", path=places):
        return reason
    return "TileLang compiles with nvcc, and there is none on PATH: install CUDA's toolkit"


def aiter(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> Call:
    """AITER's flash_attn_func, Composable Kernel's; [batch, seq_len, heads, head_dim]. Not executed here yet."""
    from aiter import flash_attn_func

    rows = rows_first(q, k, v)

    def call() -> Output:
        o, lse, *_ = flash_attn_func(*rows, softmax_scale=sm_scale, causal=causal, return_lse=True)
        return o.transpose(1, 2), lse

    return call


def aiter_missing() -> str | None:
    """None on an AMD GPU with AITER, else one sentence; another package has the same name."""
    spec = torch.version.hip and importlib.util.find_spec("aiter")
    return None if spec else "AITER's kernels are for AMD's GPUs: docker/rocm.dockerfile builds them"


def nvidia_only() -> str | None:
    """None unless torch is ROCm's."""
    return "it is for NVIDIA's Hopper GPUs, and torch here is ROCm's" if torch.version.hip else None


_copies: WeakValueDictionary[int, Tensor] = WeakValueDictionary()
"""What `rows_first` made and somebody still holds, by the id of the tensor that it copied."""


def rows_first(*tensors: Tensor) -> list[Tensor]:
    """The same numbers as [batch, seq_len, heads, head_dim], contiguous; a copy where they do not lie so already.

    Calls on the same tensors share a copy: `make inputs` has 17 kinds of inputs on the GPU at a time, and each of them
    twice fits in 80 GB, each three times does not.
    """
    return [_rows_first(tensor) for tensor in tensors]


def _rows_first(tensor: Tensor) -> Tensor:
    rows = tensor.transpose(1, 2)
    if rows.is_contiguous() or rows.requires_grad:
        return rows.contiguous()
    copy = _copies.get(id(tensor))
    alike = copy is not None and copy.dtype == rows.dtype and copy.device == rows.device
    if copy is None or not alike or not torch.equal(copy, rows):  # another tensor had that id, or it was written to
        copy = _copies[id(tensor)] = rows.contiguous()
    return copy
