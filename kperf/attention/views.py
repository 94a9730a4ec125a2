"""Improved+ on q, k and v where they lie: views of any strides, fewer heads of k and v, any length; nothing is copied.

The kernel is `improved_plus.attn_fwd_views`: the Gluon source of the override `improved_plus`, behind descriptors of
[batch, heads, seq_len, head_dim] with the tensors' own strides. Triton compiles it at the first call of a kind.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from triton.experimental.gluon import language as gl

from kperf.attention.bounded import Bounded
from kperf.attention.kernels import improved_plus
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS
from kperf.attention.launcher import Launcher
from kperf.attention.operands import DESCRIPTOR_ALIGNMENT, check_attention, why_not_here
from kperf.attention.overrides import compiled_or_why
from kperf.attention.variants import VARIANTS
from kperf.compat.torch import empty
from kperf.compat.triton import CompiledKernel
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.record.device import sm_count

Tensor = torch.Tensor
Shape = tuple[int, ...]

HEAD_DIMS = (64, 128)
DTYPES = {torch.bfloat16: gl.bfloat16, torch.float16: gl.float16}
_MOST_ROWS = 2**31
_LARGEST_STRIDE = 2**40
"""Bytes, exclusive (CUDA driver API, cuTensorMapEncodeTiled)."""
_MOST_PLANS = 4096


class Kind(NamedTuple):
    """What the kernel is compiled for. tail: without `causal`, of a number of keys that is no multiple of 128."""

    head_dim: int
    dtype: torch.dtype
    causal: bool
    tail: bool

    def signature(self) -> dict[str, str]:
        """Types of the kernel's arguments, in order."""
        q_desc, kv_desc = self._descriptor(Q_BOX_ROWS), self._descriptor(KV_BOX_ROWS)
        descriptors = {"q_desc": q_desc, "k_desc": kv_desc, "v_desc": kv_desc, "o_desc": q_desc}
        runtime = {"lse_ptr": "*fp32", "sm_scale": "fp32"} | dict.fromkeys(improved_plus.Views._fields, "i32")
        return descriptors | runtime | dict.fromkeys(self.constexprs(), "constexpr")

    def constexprs(self) -> dict[str, Any]:
        """Compile-time arguments, the last ones."""
        return {"STAGES": VARIANTS["improved_plus"].stages, "CAUSAL": self.causal, "TAIL": self.tail}

    def _descriptor(self, rows: int) -> str:
        box = [1, 1, rows, self.head_dim]
        dtype = DTYPES[self.dtype]
        return f"tensordesc<{dtype}{box},{gl.NVMMASharedLayout.get_default_for(box, dtype)!r}>"


@dataclass(frozen=True)
class Plan:
    """What a call on tensors of these shapes, strides and types takes; `plan` makes it.

    why_not: why there is no such call (one sentence), or None. unreadable: of q, k, v, those that TMA cannot read.
    n_ctas: of the launch. o, lse: shape and strides of what comes out. arguments: what the kernel is given after
    sm_scale.
    """

    why_not: str | None = None
    unreadable: tuple[bool, ...] = (False, False, False)
    launcher: Launcher | None = None
    n_ctas: int = 0
    o: tuple[Shape, Shape] = ((), ())
    lse: tuple[Shape, Shape] = ((), ())
    arguments: tuple[Any, ...] = ()

    def run(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float, *, with_lse: bool = True
    ) -> tuple[Tensor, Tensor | None]:
        """o, as a view of [batch, seq_len, heads, head_dim], and the log-sum-exp [batch, heads, seq_len] in float32.

        sm_scale: positive, for the kernel masks before it scales. What TMA cannot read is copied: rows that are not
        contiguous, or do not begin at multiples of 16 bytes. Runs on the current device, which has to be that of q.
        Without `with_lse` no log-sum-exp is allocated. Raises `UsageError` where there is no such call.
        """
        if self.why_not:
            raise UsageError(self.why_not)
        launch = self.launcher
        if launch is None or (q.data_ptr() | k.data_ptr() | v.data_ptr()) % DESCRIPTOR_ALIGNMENT:
            return self._run_on_copies(q, k, v, causal, sm_scale, with_lse)
        device = q.device
        o = empty(*self.o, q.dtype, device)
        lse = empty(*self.lse, torch.float32, device) if with_lse else None
        launch(device, self.n_ctas, (q, k, v, o), lse, sm_scale, *self.arguments)
        return o, lse

    def _run_on_copies(
        self, q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float, with_lse: bool
    ) -> tuple[Tensor, Tensor | None]:
        q, k, v = (
            _copied(tensor) if strided or tensor.data_ptr() % DESCRIPTOR_ALIGNMENT else tensor
            for strided, tensor in zip(self.unreadable, (q, k, v), strict=True)
        )
        return plan(q, k, v, causal).run(q, k, v, causal, sm_scale, with_lse=with_lse)


_plans: Bounded[Any, Plan] = Bounded(_MOST_PLANS)


def plan(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Plan:
    """How these are computed where q lies; compiles the kernel at the first call of a kind.

    q: [batch, heads, seq_len, head_dim]; k, v: of any number of heads that divides q's, and of any number of rows, with
    `causal` of as many as q, or a multiple of 128 more: then the last row of q attends to all. Raises `UsageError` for
    what is no attention.
    """
    key = (
        *(q.shape, k.shape, v.shape, q.stride(), k.stride(), v.stride()),
        *(q.dtype, k.dtype, v.dtype, q.device, k.device, v.device, causal),
    )
    known = _plans.get(key)
    if known is None:
        with torch.cuda.device_of(q):  # what is found serves later calls, whatever device is current now
            known = _plans[key] = _made(q, k, v, causal)
    return known


def attend(q: Tensor, k: Tensor, v: Tensor, causal: bool, sm_scale: float) -> tuple[Tensor, Tensor]:
    """`Plan.run` of the tensors' plan, on their device."""
    with torch.cuda.device_of(q):
        o, lse = plan(q, k, v, causal).run(q, k, v, causal, sm_scale)
    assert lse is not None
    return o, lse


def rows_first_strides(shape: Sequence[int]) -> tuple[int, int, int, int]:
    """Strides of [batch, heads, seq_len, head_dim] in the memory of [batch, seq_len, heads, head_dim]."""
    _, heads, seq_len, head_dim = shape
    return seq_len * heads * head_dim, head_dim, heads * head_dim, 1


def readable_strides(shape: Sequence[int], strides: Sequence[int], element_bytes: int) -> Shape | None:
    """The strides as a TMA descriptor takes them, None if it takes none for these.

    That of a dimension of one element, which nobody uses, may be any; it becomes a multiple of 16 bytes.
    """
    if strides[-1] != 1:
        return None
    used = [shape[-1] if size == 1 else stride for size, stride in zip(shape[:-1], strides[:-1], strict=True)]
    steps = [stride * element_bytes for stride in used]
    fits = all(0 < step < _LARGEST_STRIDE and step % DESCRIPTOR_ALIGNMENT == 0 for step in steps)
    return (*used, 1) if fits else None


def compiled(kind: Kind) -> CompiledKernel:
    """The kernel for sm_90a; no GPU is needed."""
    return compiler.compile_kernel(improved_plus.attn_fwd_views, kind.signature(), kind.constexprs())


@functools.cache
def _kernel_on(_device: torch.device, kind: Kind) -> CompiledKernel | str:
    """A device's own, for Triton loads it on one; or why there is none, which costs seconds to find out."""
    return compiled_or_why(VARIANTS["improved_plus"], lambda: compiled(kind))


def _copied(tensor: Tensor) -> Tensor:
    strides = rows_first_strides(tensor.shape)
    return torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(tensor)


def _made(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Plan:
    check_attention(q, k, v, causal)
    batch, heads, q_len, head_dim = q.shape
    kv_heads, kv_len = k.shape[1:3]
    if reason := _unsupported(q, kv_len, causal) or why_not_here(q):
        return Plan(why_not=reason)
    strides = [readable_strides(each.shape, each.stride(), each.element_size()) for each in (q, k, v)]
    readable = [stride for stride in strides if stride is not None]
    if len(readable) < len(strides):
        return Plan(unreadable=tuple(stride is None for stride in strides))
    kind = Kind(head_dim, q.dtype, causal, not causal and kv_len % KV_BOX_ROWS != 0)
    kernel = _kernel_on(q.device, kind)
    if isinstance(kernel, str):
        return Plan(why_not=kernel)
    kv_row_bytes = 2 * head_dim * q.element_size()
    views = improved_plus.views(batch, heads, kv_heads, q_len, kv_len, kv_row_bytes, causal=causal)
    boxes = [(1, 1, rows, head_dim) for rows in (Q_BOX_ROWS, KV_BOX_ROWS, KV_BOX_ROWS, Q_BOX_ROWS)]
    shapes = [tuple(tensor.shape) for tensor in (q, k, v, q)]
    descriptors = zip(shapes, [*readable, rows_first_strides(q.shape)], boxes, strict=True)
    return Plan(
        launcher=Launcher(kernel, tuple(descriptors)),
        n_ctas=min(views.n_tiles, sm_count()),
        o=(shapes[3], rows_first_strides(q.shape)),
        lse=((batch, heads, q_len), (heads * q_len, q_len, 1)),
        arguments=(*views, *kind.constexprs().values()),
    )


def _unsupported(q: Tensor, kv_len: int, causal: bool) -> str | None:
    """Why the kernel computes this on no GPU, or None."""
    batch, heads, q_len, head_dim = q.shape
    if q.dtype not in DTYPES:
        return f"q is {str(q.dtype).removeprefix('torch.')}: the kernel computes bfloat16 and float16"
    if head_dim not in HEAD_DIMS:
        return f"head_dim {head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}"
    if causal and (kv_len - q_len) % KV_BOX_ROWS:
        return (
            f"k has {kv_len - q_len} rows more than q: under a causal mask these are to be a multiple of {KV_BOX_ROWS}"
        )
    tile = 2 * Q_BOX_ROWS
    if batch * heads * (q_len + 2 * tile) >= _MOST_ROWS or kv_len + tile >= _MOST_ROWS:
        return f"{batch * heads} heads of {q_len} rows are more than the kernel's 32-bit row numbers"
    return None
