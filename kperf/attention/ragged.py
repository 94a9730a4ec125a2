"""Improved+ on sequences of different lengths, one after the other, in one launch: what `cu_seqlens` describes.

Where sequences begin is on the GPU and is not read back. `kernels.ragged.fill_table` writes which tiles there are, and
`improved_plus.attn_fwd_ragged`, the Gluon source of the override `improved_plus`, computes them where q, k and v lie.
"""

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon import language as gl

from kperf.attention.bounded import Bounded
from kperf.attention.kernels import improved_plus, ragged
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS
from kperf.attention.launcher import Launcher
from kperf.attention.operands import DESCRIPTOR_ALIGNMENT, why_not_here
from kperf.attention.overrides import compiled_or_why
from kperf.attention.variants import VARIANTS
from kperf.attention.views import DTYPES, HEAD_DIMS, readable_strides
from kperf.compat.torch import empty
from kperf.compat.triton import CompiledKernel
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.record.device import sm_count

Tensor = torch.Tensor
Shape = tuple[int, ...]

_STEP = 256
"""Of `fill_table`: sequences, and slots, at a time."""
_MOST_ROWS = 2**30
_MOST_PLANS = 4096
_MOST_LAYOUTS = 256


class Kind(NamedTuple):
    """What the kernels are compiled for."""

    head_dim: int
    dtype: torch.dtype
    causal: bool

    def signature(self) -> dict[str, str]:
        """Types of the arguments of `attn_fwd_ragged`, in order."""
        q_desc, kv_desc = self._descriptor(Q_BOX_ROWS), self._descriptor(KV_BOX_ROWS)
        descriptors = {"q_desc": q_desc, "k_desc": kv_desc, "v_desc": kv_desc, "o_desc": q_desc}
        numbers = dict.fromkeys(improved_plus.Ragged._fields, "i32") | {"table": "*i32"}
        constexprs = dict.fromkeys(self.constexprs(), "constexpr")
        return descriptors | {"lse_ptr": "*fp32", "sm_scale": "fp32"} | numbers | constexprs

    def constexprs(self) -> dict[str, Any]:
        """Compile-time arguments of `attn_fwd_ragged`, the last ones."""
        return {"STAGES": VARIANTS["improved_plus"].stages, "CAUSAL": self.causal, "TAIL": not self.causal}

    def table_signature(self) -> dict[str, str]:
        """Types of the arguments of `fill_table`, in order."""
        pointers = dict.fromkeys(("begins_q", "begins_k", "table"), "*i32")
        outputs = {"o_ptr": f"*{DTYPES[self.dtype]}", "lse_ptr": "*fp32"}
        numbers = dict.fromkeys(("batch", "total_q", "heads", "in_section", "spare"), "i32")
        return pointers | outputs | numbers | dict.fromkeys(self.table_constexprs(), "constexpr")

    def table_constexprs(self) -> dict[str, Any]:
        """Compile-time arguments of `fill_table`, the last ones."""
        return {"HEAD_DIM": self.head_dim, "CAUSAL": self.causal, "STEP": _STEP}

    def _descriptor(self, rows: int) -> str:
        box = [1, 1, 1, rows, self.head_dim]
        dtype = DTYPES[self.dtype]
        return f"tensordesc<{dtype}{box},{gl.NVMMASharedLayout.get_default_for(box, dtype)!r}>"


@dataclass(frozen=True)
class Plan:
    """What a call on tensors of these shapes, strides and types takes; `plan` makes it.

    why_not: why there is no such call (one sentence), or None. unreadable: of q, k, v, those that TMA cannot read.
    launchers: of `fill_table` and `attn_fwd_ragged`, None where nothing is launched; batch, n_ctas: their CTAs.
    o, lse, table: shape and strides of what is allocated. table_numbers, numbers: what the kernels are given last.
    """

    why_not: str | None = None
    unreadable: tuple[bool, ...] = (False, False, False)
    launchers: tuple[Launcher, Launcher] | None = None
    batch: int = 0
    n_ctas: int = 0
    o: tuple[Shape, Shape] = ((), ())
    lse: tuple[Shape, Shape] = ((), ())
    table: tuple[Shape, Shape] = ((), ())
    table_numbers: tuple[Any, ...] = ()
    numbers: tuple[Any, ...] = ()

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, sm_scale: float
    ) -> tuple[Tensor, Tensor]:
        """`attend` of tensors that TMA reads."""
        device = q.device
        o, lse = empty(*self.o, q.dtype, device), empty(*self.lse, torch.float32, device)
        if self.launchers is None:
            return o.zero_(), lse.fill_(-torch.inf)
        table = empty(*self.table, torch.int32, device)
        fill, compute = self.launchers
        fill(device, self.batch, (), begins_q, begins_k, table, o, lse, *self.table_numbers)
        compute(device, self.n_ctas, (q, k, v, o), lse, sm_scale, table, *self.numbers)
        return o, lse


_plans: Bounded[Any, Plan] = Bounded(_MOST_PLANS)


def plan(q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, causal: bool, max_kv_len: int) -> Plan:
    """How these are computed where q lies; compiles the kernels at the first call of a kind.

    q: [total_q, heads, head_dim]; k, v: [total_k, kv_heads, head_dim], of any number of heads that divides q's.
    begins_q, begins_k: int32 [batch + 1], where sequences begin, and the end; the same tensor if `causal`. max_kv_len:
    of k in the longest sequence, or a guess: it orders the work. Raises `UsageError` for what is no attention.
    """
    key = (
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride(), begins_q.shape, begins_k.shape),
        *(q.dtype, k.dtype, v.dtype, begins_q.dtype, begins_k.dtype, begins_q.stride(), begins_k.stride()),
        *(q.device, k.device, v.device, begins_q.device, begins_k.device),
        *(causal, max_kv_len, begins_q.data_ptr() == begins_k.data_ptr()),
    )
    known = _plans.get(key)
    if known is None:
        with torch.cuda.device_of(q):  # what is found serves later calls, whatever device is current now
            known = _plans[key] = _made(q, k, v, begins_q, begins_k, causal, max_kv_len)
    return known


def attend(
    q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, causal: bool, max_kv_len: int, sm_scale: float
) -> tuple[Tensor, Tensor]:
    """o, contiguous, and the log-sum-exp [heads, total_q] in float32: 0 and -inf of what attends to nothing.

    Arguments: as of `plan`; sm_scale: positive, for the kernel masks before it scales. What TMA cannot read is copied:
    rows that are not contiguous, or do not begin at multiples of 16 bytes. Raises `UsageError` where `plan` says why.
    """
    rest = (begins_q, begins_k)
    with torch.cuda.device_of(q):
        its_plan = plan(q, k, v, *rest, causal, max_kv_len)
        if its_plan.why_not:
            raise UsageError(its_plan.why_not)
        if any(its_plan.unreadable) or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % DESCRIPTOR_ALIGNMENT:
            q, k, v = (
                tensor.clone(memory_format=torch.contiguous_format)
                if strided or tensor.data_ptr() % DESCRIPTOR_ALIGNMENT
                else tensor
                for strided, tensor in zip(its_plan.unreadable, (q, k, v), strict=True)
            )
            its_plan = plan(q, k, v, *rest, causal, max_kv_len)
        return its_plan.run(q, k, v, *rest, sm_scale)


def check_ragged(q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor) -> None:
    """Raise `UsageError` for what is no attention of sequences for anyone."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 3:
            raise UsageError(f"{name} has {tensor.dim()} dimensions: hand in [total, heads, head_dim]")
        if 0 in tensor.shape[1:]:
            raise UsageError(f"{name} is {list(tensor.shape)}: hand in one head or more")
        if tensor.dtype != q.dtype or not tensor.is_floating_point():
            raise UsageError(f"{name} is {tensor.dtype} and q {q.dtype}: hand in one floating-point dtype")
    for name, begins in (("cu_seqlens_q", begins_q), ("cu_seqlens_k", begins_k)):
        if begins.dtype != torch.int32 or begins.dim() != 1 or not begins.is_contiguous():
            raise UsageError(f"{name} is {begins.dtype}, {list(begins.shape)}: hand in int32 [batch + 1], contiguous")
        if begins.shape != begins_q.shape or not len(begins):
            raise UsageError(f"{name} has {len(begins)} numbers: both have one more than there are sequences")
    if any(tensor.device != q.device for tensor in (k, v, begins_q, begins_k)):
        raise UsageError("q, k, v, cu_seqlens_q and cu_seqlens_k are on different devices: hand in tensors of one")
    if k.shape != v.shape or k.shape[2] != q.shape[2]:
        raise UsageError(f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}: k and v are of q's head_dim")
    if q.shape[1] % k.shape[1]:
        raise UsageError(f"q has {q.shape[1]} heads and k {k.shape[1]}: q's have to be a multiple of k's")


def compiled(kind: Kind) -> tuple[CompiledKernel, CompiledKernel]:
    """`fill_table` and `attn_fwd_ragged` for sm_90a; no GPU is needed."""
    return (
        compiler.compile_kernel(ragged.fill_table, kind.table_signature(), kind.table_constexprs()),
        compiler.compile_kernel(improved_plus.attn_fwd_ragged, kind.signature(), kind.constexprs()),
    )


@functools.cache
def _kernels_on(_device: torch.device, kind: Kind) -> tuple[CompiledKernel, CompiledKernel] | str:
    """A device's own, for Triton loads them on one; or why there are none, which costs seconds to find out."""
    return compiled_or_why(VARIANTS["improved_plus"], lambda: compiled(kind))


def _made(q: Tensor, k: Tensor, v: Tensor, begins_q: Tensor, begins_k: Tensor, causal: bool, max_kv_len: int) -> Plan:
    check_ragged(q, k, v, begins_q, begins_k)
    batch = len(begins_q) - 1
    (total_q, heads, head_dim), (total_k, kv_heads, _) = q.shape, k.shape
    if reason := _unsupported(q, k, begins_q, begins_k, causal) or why_not_here(q):
        return Plan(why_not=reason)
    o, lse = ((total_q, heads, head_dim), (heads * head_dim, head_dim, 1)), ((heads, total_q), (max(total_q, 1), 1))
    if 0 in (total_q, total_k, batch):
        return Plan(o=o, lse=lse)
    readable = [readable_strides(tensor.shape, tensor.stride(), tensor.element_size()) for tensor in (q, k, v)]
    strides = [tensor[:2] for tensor in readable if tensor is not None]
    if len(strides) < len(readable):
        return Plan(unreadable=tuple(tensor is None for tensor in readable))
    kind = Kind(head_dim, q.dtype, causal)
    launchers = _launchers_on(q.device, kind, heads, kv_heads, (*strides, o[1][:2]))
    if isinstance(launchers, str):
        return Plan(why_not=launchers)
    in_section = ragged.section_heads(heads, kv_heads, min(max_kv_len, total_k), 2 * head_dim * q.element_size())
    slots = ragged.most_slots(batch, heads, in_section, total_q)
    n_ctas = min(slots * in_section, sm_count())
    return Plan(
        launchers=launchers,
        batch=batch,
        n_ctas=n_ctas,
        o=o,
        lse=lse,
        table=((ragged.numbers(slots, n_ctas),), (1,)),
        table_numbers=(batch, total_q, heads, in_section, n_ctas, *kind.table_constexprs().values()),
        numbers=(in_section, heads // kv_heads, total_q, *kind.constexprs().values()),
    )


@functools.lru_cache(_MOST_LAYOUTS)
def _launchers_on(
    device: torch.device, kind: Kind, heads: int, kv_heads: int, strides: tuple[Shape, ...]
) -> tuple[Launcher, Launcher] | str:
    """Of tensors with these first two strides (q, k, v, o), however many rows they have; or why there are none.

    Totals differ from step to step where sequences are packed: what is made here, and the descriptors that it keeps
    encoded, takes a hundred times as long as a launch.
    """
    kernels = _kernels_on(device, kind)
    if isinstance(kernels, str):
        return kernels
    table, attention = kernels
    boxes = (Q_BOX_ROWS, KV_BOX_ROWS, KV_BOX_ROWS, Q_BOX_ROWS)
    descriptors = [
        improved_plus.ragged_descriptor(of_heads, kind.head_dim, (row, head), box_rows)
        for of_heads, (row, head), box_rows in zip((heads, kv_heads, kv_heads, heads), strides, boxes, strict=True)
    ]
    return Launcher(table), Launcher(attention, descriptors)


def _unsupported(q: Tensor, k: Tensor, begins_q: Tensor, begins_k: Tensor, causal: bool) -> str | None:
    """Why the kernel computes this on no GPU, or None."""
    total_q, heads, head_dim = q.shape
    if q.dtype not in DTYPES:
        return f"q is {str(q.dtype).removeprefix('torch.')}: the kernel computes bfloat16 and float16"
    if head_dim not in HEAD_DIMS:
        return f"head_dim {head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if causal and begins_q.data_ptr() != begins_k.data_ptr():
        return "under a causal mask q and k are to be of the same lengths: hand in one tensor as both cu_seqlens"
    tile = 2 * Q_BOX_ROWS
    if heads * (total_q + tile * len(begins_q)) >= 2 * _MOST_ROWS or max(total_q, len(k)) >= _MOST_ROWS:
        return f"{heads} heads of {total_q} rows in all are more than the kernel's 32-bit row numbers"
    return None
