"""The kinds of numbers in q, k and v: what a kernel's time and error may depend on beside the shape.

Scores of normal q and k are flat: no key has much of a row. Trained models' are not, and an online softmax that moves
its reference only when it must is as fast as its rows are flat, so every kind is a kind of benchmark of its own. v is
normal for all.
"""

import math
from collections.abc import Callable

import torch

from kperf.attention.workload import InputKind

_LOCAL_SCALE = 1.5
_ROTARY_BASE = 10_000.0
_DEGREES = 3
_OUTLIERS = 4
_JUMPING_ROWS = {"few": 1000, "tiles": 128, "rows": 1}
"""Of how many rows one jumps."""

Shape = tuple[int, int, int, int]
Normal = Callable[[Shape], torch.Tensor]


def draw(
    kind: InputKind, shape: Shape, dtype: torch.dtype, seed: int, device: str = "cuda", kv_heads: int | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q, k, v of `shape` [batch, heads, seq_len, head_dim] and `dtype`, made in float32 from `seed` and rounded.

    k and v have `kv_heads` heads where that is given, which divides q's.
    """
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(size: Shape) -> torch.Tensor:
        return torch.randn(size, generator=generator, device=device, dtype=torch.float32)

    batch, heads, seq_len, head_dim = shape
    kv_shape = batch, kv_heads or heads, seq_len, head_dim
    q, k, v = normal(shape), normal(kv_shape), normal(kv_shape)
    if kind.startswith("x"):
        q = q * int(kind.removeprefix("x"))
    elif kind == "sink":
        q = q + 1
        k[:, :, 0] = 1
    elif kind == "ramp":
        position = torch.arange(seq_len, device=device, dtype=torch.float32)
        q = torch.ones_like(q)
        k = k / 2 + (4 * position / seq_len)[:, None]
    elif kind == "student":
        q, k = q * _student(shape, normal), k * _student(kv_shape, normal)
    elif kind == "outliers":
        q[..., :_OUTLIERS] *= 12
        k[..., :_OUTLIERS] *= 6
    elif kind == "steps":
        position = torch.arange(seq_len, device=device)
        q, k = torch.ones_like(q), 0.3 * k + (1.5 * (position // 128 % 7))[:, None]
    elif kind.startswith("jump"):
        log2, _, rows = kind.removeprefix("jump").partition("_")
        every = _JUMPING_ROWS[rows]
        q[..., -1], k[..., -1] = 0, 0
        q[:, :, every // 2 :: every, -1] = 1
        k[:, :, seq_len // 2, -1] = int(log2) * math.log(2) * math.sqrt(head_dim)
    elif kind == "local":
        rotated = _rotated_base(kv_shape, normal, device)
        q, k = q / 2 + rotated.repeat_interleave(heads // kv_shape[1], dim=1), k / 2 + rotated
    return q.to(dtype), k.to(dtype), v.to(dtype)


def _student(shape: Shape, normal: Normal) -> torch.Tensor:
    """What makes a standard normal number one of Student's t distribution: the root of degrees / chi squared."""
    chi_squared = torch.stack([normal(shape).square() for _ in range(_DEGREES)]).sum(0)
    return (_DEGREES / chi_squared).sqrt()


def _rotated_base(shape: Shape, normal: Normal, device: str) -> torch.Tensor:
    """One random vector a head, its pairs (j, j + head_dim / 2) turned by position * 10000^(-2 j / head_dim)."""
    batch, heads, seq_len, head_dim = shape
    pairs = head_dim // 2
    base = _LOCAL_SCALE * normal((batch, heads, 1, head_dim))
    frequency = _ROTARY_BASE ** (-torch.arange(pairs, device=device, dtype=torch.float32) / pairs)
    angle = torch.arange(seq_len, device=device, dtype=torch.float32)[:, None] * frequency
    x, y = base[..., :pairs], base[..., pairs:]
    return torch.cat([x * angle.cos() - y * angle.sin(), x * angle.sin() + y * angle.cos()], dim=-1)
