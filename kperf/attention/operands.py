"""The q, k and v that people hand in: which make a workload, and what `attn_fwd` is given of them.

`attn_fwd` reads plain [batch * heads * seq_len, head_dim] rows behind descriptors made on the host. Views of another
layout (models keep [batch, seq_len, heads, head_dim]) and fewer heads of k and v (grouped queries) are copied into
that; what is no workload of this project, or does not lie on the GPU, is refused.
"""

import torch

from kperf.arch import SM_90A
from kperf.attention.workload import Workload, make_workload
from kperf.compat.triton.drivers import active_device, active_target
from kperf.errors import UsageError

DESCRIPTOR_ALIGNMENT = 16
"""Bytes at whose multiples the tensor of a TMA descriptor begins (CUDA driver API, cuTensorMapEncodeTiled)."""


def check_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> None:
    """Raise `UsageError` for what is no attention for anyone.

    q: [batch, heads, seq_len, head_dim]; k, v: of fewer heads if their number divides q's, and of another seq_len, with
    `causal` of no smaller one; all of one dtype, on one device.
    """
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            raise UsageError(f"{name} has {tensor.dim()} dimensions: hand in [batch, heads, seq_len, head_dim]")
        if 0 in tensor.shape:
            raise UsageError(f"{name} is empty, {_shape(tensor)}: hand in one row or more")
        if not tensor.is_floating_point():
            raise UsageError(f"{name} is {_dtype(tensor)}: hand in floating-point numbers")
        if tensor.dtype != q.dtype:
            raise UsageError(f"{name} is {_dtype(tensor)} and q {_dtype(q)}: hand in one dtype")
        if tensor.device != q.device:
            raise UsageError(f"{name} is on {tensor.device} and q on {q.device}: hand in tensors of one device")
    if k.shape != v.shape:
        raise UsageError(f"k is {_shape(k)} and v {_shape(v)}: hand in one shape")
    if k.shape[0] != q.shape[0] or k.shape[3] != q.shape[3]:
        raise UsageError(f"q is {_shape(q)} and k {_shape(k)}: batch and head_dim have to be the same")
    if q.shape[1] % k.shape[1]:
        raise UsageError(f"q has {q.shape[1]} heads and k {k.shape[1]}: q's have to be a multiple of k's")
    if causal and k.shape[2] < q.shape[2]:
        raise UsageError(f"q has {q.shape[2]} rows and k {k.shape[2]}: a causal mask needs as many of k, or more")


def default_scale(q: torch.Tensor) -> float:
    """head_dim ** -0.5; 1 of what has no head_dim, which is no attention and is refused by who checks it."""
    return q.shape[-1] ** -0.5 if q.shape and q.shape[-1] else 1.0


def workload_of(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> Workload:
    """The workload that `attn_fwd` computes on these tensors; views and fewer heads of k and v included.

    Raises `UsageError` if they are no attention or none of this project's workloads.
    """
    check_attention(q, k, v, causal)
    if k.shape[2] != q.shape[2]:
        raise UsageError(f"q has {q.shape[2]} rows and k {k.shape[2]}: attn_fwd needs as many")
    batch, heads, seq_len, head_dim = q.shape
    return make_workload(batch=batch, heads=heads, seq_len=seq_len, head_dim=head_dim, causal=causal, dtype=_dtype(q))


def why_not_here(tensor: torch.Tensor) -> str | None:
    """None if a Hopper kernel that is launched now runs where the tensor lies, else one sentence."""
    try:
        device = active_device()
    except RuntimeError:  # Triton found no driver
        return f"q is on {tensor.device}, and Triton finds no GPU here: move q, k and v to a Hopper GPU"
    if tensor.device != device:
        return f"q is on {tensor.device}, and kernels run on {device}: move q, k and v there"
    target = active_target()
    if target != SM_90A.target:
        wanted = f"the kernels are compiled for {SM_90A.name}: use a Hopper GPU"
        return f"{device} is {target.backend} {target.arch}, and {wanted}"
    return None


def refuse_gradients(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise `UsageError` if autograd waits for a backward pass that a bare kernel does not have."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (q, k, v)):
        raise UsageError(
            "q, k or v requires gradients, and this computes forward only: call it under torch.no_grad(), or "
            "kperf.integrations.operator.attention, which has a backward pass"
        )


def as_rows(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v as `attn_fwd` reads them: contiguous, aligned, k and v with all heads; copies only of what is not."""
    k, v = of_all_heads(q, k, v)
    return _aligned(q.contiguous()), _aligned(k.contiguous()), _aligned(v.contiguous())


def of_all_heads(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """k and v with as many heads as q: each head is repeated for the group that shares it."""
    groups = q.shape[1] // k.shape[1]
    return (k, v) if groups == 1 else (k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1))


def rows_aligned(tensor: torch.Tensor) -> torch.Tensor:
    """Itself where FA3, FlashAttention-2 and cuDNN read it: rows contiguous, at multiples of 16 bytes; else a copy.

    FA3 does not look: rows that begin elsewhere end in an illegal instruction, and with it the GPU's context.
    """
    together = tensor if tensor.stride(-1) == 1 else tensor.contiguous()
    begins = together.data_ptr(), *(stride * together.element_size() for stride in together.stride()[:-1])
    return together.clone() if any(begin % DESCRIPTOR_ALIGNMENT for begin in begins) else together


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.clone() if tensor.data_ptr() % DESCRIPTOR_ALIGNMENT else tensor


def _shape(tensor: torch.Tensor) -> str:
    return str(list(tensor.shape))


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
