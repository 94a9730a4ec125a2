"""What is computed: the shape of one attention forward pass, its work, and the grids of the figures."""

from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from kperf.errors import UsageError

Dtype = Literal["bfloat16", "float16"]
SweepName = Literal["seq_len", "batch_size"]
InputKind = Literal[
    "normal",
    "x2",
    "x4",
    "x10",
    "sink",
    "ramp",
    "local",
    "x30",
    "student",
    "outliers",
    "steps",
    "jump130_few",
    "jump130_tiles",
    "jump130_rows",
    "jump200_few",
    "jump200_tiles",
    "jump200_rows",
]
"""What numbers are in q, k and v: `inputs.draw` makes them.

normal: q and k are standard normal. x2, x4, x10, x30: q is that times normal, so that a few random keys have most of a
row. sink: one key, the first, is attended to by all rows, as the first token of a trained model is. ramp: scores grow
from the first key to the last, so that the maximum moves in every block. local: rows attend to keys near them, by
rotary positions (RoFormer, arXiv 2104.09864). student: q and k have Student's t distribution with 3 degrees of freedom.
outliers: four channels of q are 12 times as large, and of k 6 times, as in trained models. steps: q is 1, and scores
rise by a step each 128 keys, seven times, and fall back. jump130, jump200: one key, in the middle, has a score that is
2^130 or 2^200 times the others', in a row of 1000 (few), in a row of each tile of 128, or in all rows.
"""

SEQ_LEN_STEP = 128
"""seq_len is a multiple of this: the kernels' tiles are 128 rows of q against 128 rows of k and v, without a tail."""

HEAD_DIMS = (64, 128, 256)


class Workload(BaseModel):
    """One pass of self-attention: q, o of shape [batch, heads, seq_len, head_dim], k, v of `kv_heads` heads.

    kv_heads: a number that divides heads, each head of k and v for so many of q's in a row (arXiv 2305.13245); None,
    which is what heads itself becomes, for one each. backward: the gradients of q, k and v, instead of o.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    batch: Annotated[int, Field(ge=1)]
    heads: Annotated[int, Field(ge=1)] = 16
    seq_len: Annotated[int, Field(ge=SEQ_LEN_STEP)]
    head_dim: int = 128
    causal: bool = False
    dtype: Dtype = "bfloat16"
    inputs: InputKind = "normal"
    kv_heads: Annotated[int, Field(ge=1)] | None = None
    backward: bool = False

    @field_validator("seq_len")
    @classmethod
    def _whole_tiles(cls, seq_len: int) -> int:
        if seq_len % SEQ_LEN_STEP:
            raise ValueError(f"seq_len {seq_len} is not a multiple of {SEQ_LEN_STEP}")
        return seq_len

    @field_validator("head_dim")
    @classmethod
    def _known_head_dim(cls, head_dim: int) -> int:
        if head_dim not in HEAD_DIMS:
            raise ValueError(f"head_dim {head_dim} is not one of {', '.join(map(str, HEAD_DIMS))}")
        return head_dim

    @field_validator("kv_heads")
    @classmethod
    def _whole_groups(cls, kv_heads: int | None, info: ValidationInfo) -> int | None:
        heads = info.data.get("heads", kv_heads)
        if kv_heads is None or heads is None or kv_heads == heads:
            return None
        if heads % kv_heads:
            raise ValueError(f"kv_heads {kv_heads} does not divide heads {heads}")
        return kv_heads

    @model_validator(mode="after")
    def _rows_fit_the_kernels(self) -> Self:
        if self.rows >= 2**31:
            raise ValueError(f"{self.rows} rows of q are more than the kernels' 32-bit row numbers")
        return self

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """[batch, heads, seq_len, head_dim]."""
        return self.batch, self.heads, self.seq_len, self.head_dim

    @property
    def rows(self) -> int:
        """Rows of q over all heads: batch * heads * seq_len."""
        return self.batch * self.heads * self.seq_len

    @property
    def sm_scale(self) -> float:
        """Factor on q k^T: head_dim ** -0.5."""
        return float(self.head_dim**-0.5)

    @property
    def flops(self) -> int:
        """FLOPs of the two matrix products: 4 * batch * heads * seq_len^2 * head_dim, half if causal.

        Backward has five products in place of two. The formulas of the FlashAttention-3 paper (arXiv 2407.08608,
        section 4.1); softmax is not counted.
        """
        full = 4 * self.batch * self.heads * self.seq_len**2 * self.head_dim
        forward = full // 2 if self.causal else full
        return forward * 5 // 2 if self.backward else forward

    def __str__(self) -> str:
        mask = "causal" if self.causal else "full"
        inputs = "" if self.inputs == "normal" else f", inputs {self.inputs}"
        heads = f"{self.heads}" if self.kv_heads is None else f"{self.heads}/{self.kv_heads}"
        backward = ", backward" if self.backward else ""
        return f"{self.batch} x {heads} x {self.seq_len} x {self.head_dim} {self.dtype} {mask}{inputs}{backward}"


def make_workload(**fields: object) -> Workload:
    """A `Workload` from a person's numbers; raises `UsageError` with the reason when they do not make one."""
    try:
        return Workload.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"]) or "workload"
        raise UsageError(f"{name}: {first['msg'].removeprefix('Value error, ')}") from None


FIG11 = Workload(batch=8, seq_len=8192)
"""The launch whose inside Fig. 11 shows."""


def fig12_grid(
    sweep: SweepName, causal: bool = False, head_dim: int = 128, dtype: str = "bfloat16", inputs: str = "normal"
) -> list[Workload]:
    """The eight workloads of one panel of Fig. 12, which is of head_dim 128, bfloat16 and normal inputs.

    seq_len: 2^7..2^14 at batch 16; batch_size: batch 2^0..2^7 at seq_len 4096; 16 heads. Raises `UsageError` for a
    head_dim, dtype or kind of inputs that there is not.
    """
    places = [(16, 2**n) for n in range(7, 15)] if sweep == "seq_len" else [(2**n, 4096) for n in range(8)]
    return [
        make_workload(batch=batch, seq_len=seq_len, causal=causal, head_dim=head_dim, dtype=dtype, inputs=inputs)
        for batch, seq_len in places
    ]
