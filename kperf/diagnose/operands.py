"""Operands of `tl.dot`: what they were in memory, and what multiplies them."""

import re
from dataclasses import dataclass

from kperf.arch import Dtype
from kperf.diagnose.kernel import Kernel
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation

_PASSED = ("ttg.convert_layout", "ttg.local_alloc", "ttg.local_load", "tt.trans", "ttg.memdesc_trans", "tt.fp_to_fp")
_WIDENING = ("arith.extf", "tt.fp_to_fp", "arith.sitofp")
WORDS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i8": "int8"}
"""Names of element types in torch."""


@dataclass(frozen=True)
class Widened:
    """An operand: its element type in memory, and the wider one that `tl.dot` is given."""

    narrow: str
    wide: str

    @property
    def is_byte(self) -> bool:
        """Whether it has 8 bits in memory."""
        return element_bytes(self.narrow) == 1

    @property
    def dtype(self) -> Dtype:
        """The type of an MMA of bytes."""
        return "int8" if self.narrow == "i8" else "fp8"


def runs_on_fma(kernel: Kernel, op: Operation) -> bool:
    """Whether the FMA units do a `tl.dot`: its result has a layout of no MMA."""
    types = tensor_types(op.rest.partition(" : ")[2]) if op.name == "tt.dot" else []
    return bool(types) and kernel.layouts.kind(types[-1].layout) in ("blocked", "linear")


def widened_operands(kernel: Kernel, op: Operation) -> dict[int, Widened]:
    """By their places, the operands (0, 1) that were narrower in memory."""
    return {place: one for place in (0, 1) if (one := _widening(kernel, op, place)) is not None}


def _widening(kernel: Kernel, op: Operation, place: int) -> Widened | None:
    stores = (
        one
        for one in kernel.named("ttg.local_store", "ttng.tmem_store")
        if one.parent is op.parent and one.operands[1:2] == op.operands[place : place + 1]
    )
    stored = next(stores, None)  # into the buffer that the MMA reads
    maker = kernel.values.maker(op, place) if stored is None else kernel.values.maker(stored, 0)
    for _ in range(8):
        if maker is None:
            return None
        if maker.name in _WIDENING and (found := _of_types(maker)) is not None:
            return found
        if maker.name not in _PASSED:
            return None
        maker = kernel.values.maker(maker, 0)
    return None


def _of_types(op: Operation) -> Widened | None:
    """What a conversion makes of 16 or 8 bits; None where it makes them no wider, or of what is not in memory so."""
    types = tensor_types(op.rest.rpartition(" : ")[2])
    if len(types) != 2 or not re.fullmatch(r"b?f16|i8|f8\w+", types[0].element):
        return None
    return Widened(types[0].element, types[1].element) if types[1].bytes > types[0].bytes else None
