"""The overrides by name: which Gluon kernel each is generated from, how it is launched, and what its name promises."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import triton.language as tl
from triton.experimental.gluon import language as gl

from kperf.attention.kernels import improved, improved_plus, vanilla
from kperf.attention.kernels.attn_fwd import KV_BOX_ROWS, Q_BOX_ROWS
from kperf.attention.schedule import Schedule
from kperf.attention.style import Style
from kperf.errors import UsageError

TILE_ROWS = 128
"""Rows of q that a block of an override computes at a time: two consumers of 64."""

Grid = Literal["one_block_per_tile", "persistent"]
"""one_block_per_tile: n_rows / 128 blocks; persistent: that, but at most one block an SM."""

_TRITON_DTYPE = {"bfloat16": "bf16", "float16": "fp16"}


@dataclass(frozen=True)
class Specialization:
    """The compile-time choices of `attn_fwd`: an override serves every workload that shares them."""

    head_dim: int = 128
    dtype: str = "bfloat16"
    causal: bool = False

    @property
    def file_name(self) -> str:
        """For example d128_bf16_full.ttgir."""
        return f"d{self.head_dim}_{_TRITON_DTYPE[self.dtype]}_{'causal' if self.causal else 'full'}.ttgir"

    def signature(self) -> dict[str, str]:
        """Types of `attn_fwd`'s arguments as the JIT sees them (a sequence: the order is the arguments')."""
        element = _TRITON_DTYPE[self.dtype]
        q_box = f"tensordesc<{element}[{Q_BOX_ROWS}, {self.head_dim}]>"
        kv_box = f"tensordesc<{element}[{KV_BOX_ROWS}, {self.head_dim}]>"
        runtime = {"lse_ptr": "*fp32", "sm_scale": "fp32", "seq_len": "i32", "n_rows": "i32"}
        descriptors = {"q_desc": q_box, "k_desc": kv_box, "v_desc": kv_box, "o_desc": q_box}
        return descriptors | runtime | dict.fromkeys(self.constexprs(), "constexpr")

    def constexprs(self) -> dict[str, Any]:
        """Compile-time arguments of `attn_fwd`."""
        dtype = {"bfloat16": tl.bfloat16, "float16": tl.float16}[self.dtype]
        return {
            "HEAD_DIM": self.head_dim,
            "BLOCK_M": Q_BOX_ROWS,
            "BLOCK_N": KV_BOX_ROWS,
            "CAUSAL": self.causal,
            "DOT_DTYPE": dtype,
        }

    def gluon_signature(self, constexprs: Mapping[str, Any]) -> dict[str, str]:
        """The same for a Gluon kernel, whose descriptors carry their shared-memory layout in the type."""
        element = gl.bfloat16 if self.dtype == "bfloat16" else gl.float16
        runtime = {name: kind for name, kind in self.signature().items() if kind != "constexpr"}
        for name, rows in (
            ("q_desc", Q_BOX_ROWS),
            ("k_desc", KV_BOX_ROWS),
            ("v_desc", KV_BOX_ROWS),
            ("o_desc", Q_BOX_ROWS),
        ):
            layout = gl.NVMMASharedLayout.get_default_for([rows, self.head_dim], element)
            runtime[name] = f"{runtime[name][:-1]},{layout!r}>"
        return runtime | dict.fromkeys(constexprs, "constexpr")


FULL_AND_CAUSAL = (Specialization(), Specialization(causal=True))
"""Those of the paper's figures, and those of which there are instrumented kernels."""


@dataclass(frozen=True)
class Variant:
    """One override family: a Gluon kernel and the specialisations for which its TTGIR is generated.

    Registered in `VARIANTS` it is an implementation of the same key, so a bar of Fig. 12 with speedups over those in
    `compared_with`, and a timeline: in Fig. 11 itself if `in_fig11`, else in a picture of its own beside.
    """

    name: str
    label: str
    kernel: Any
    grid: Grid
    schedule: Schedule
    style: Style
    specializations: tuple[Specialization, ...] = FULL_AND_CAUSAL
    stages: int = 2
    compared_with: tuple[str, ...] = ("vanilla", "fa3", "cudnn")
    in_fig11: bool = False

    def constexprs(self, specialization: Specialization) -> dict[str, Any]:
        """Compile-time arguments of the Gluon kernel."""
        return {"STAGES": self.stages, "CAUSAL": specialization.causal}

    @property
    def source(self) -> str:
        """The Gluon source's path in this repository."""
        return f"kperf/attention/kernels/{Path(self.kernel.fn.__code__.co_filename).name}"


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant(
            "vanilla",
            "Triton-FA3",
            vanilla.attn_fwd,
            "one_block_per_tile",
            "in_order",
            Style("#cc79a7", "///", "<"),
            compared_with=(),
            in_fig11=True,
        ),
        Variant(
            "improved",
            "Triton-FA3 Improved",
            improved.attn_fwd,
            "one_block_per_tile",
            "qk_ahead",
            Style("#d55e00", "\\\\\\", ">"),
            in_fig11=True,
        ),
        Variant(
            "improved_plus",
            "Triton-FA3 Improved+",
            improved_plus.attn_fwd,
            "persistent",
            "qk_ahead",
            Style("#009e73", "xxx", "P"),
            (
                *FULL_AND_CAUSAL,
                *(Specialization(64, "bfloat16", causal) for causal in (False, True)),
                *(Specialization(128, "float16", causal) for causal in (False, True)),
            ),
            stages=3,
        ),
    )
}
"""The only list of variants: files of ttgir/, implementations, figures, claims and commands take them from here."""


def variant_named(name: str) -> Variant:
    """Look the name up; raises `UsageError` for an unknown one."""
    if name not in VARIANTS:
        raise UsageError(f"unknown variant {name!r}: choose from {', '.join(VARIANTS)}")
    return VARIANTS[name]
