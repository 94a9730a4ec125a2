"""Operands of `tl.dot`: what they were in memory, and what multiplies them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kperf.arch import Dtype
from kperf.diagnose.kernel import Kernel
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation

_PASSED = ("ttg.convert_layout", "ttg.local_alloc", "ttg.local_load", "tt.trans", "ttg.memdesc_trans", "tt.fp_to_fp")
_WIDENING = ("arith.extf", "tt.fp_to_fp", "arith.sitofp")
_TRANSPOSED = ("tt.trans", "ttg.memdesc_trans")
_LONGEST = 8
"""Operations between a widening and `tl.dot`."""
WORDS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i8": "int8"}
"""Names of element types in torch."""


@dataclass(frozen=True)
class Widened:
    """An operand: its element type in memory, and the wider one that `tl.dot` is given.

    is_scaled: whether it is also multiplied by numbers that are the same along the dimension that `tl.dot` sums over.
    """

    narrow: str
    wide: str
    is_scaled: bool = False

    @property
    def is_byte(self) -> bool:
        """Whether it has 8 bits in memory."""
        return element_bytes(self.narrow) == 1

    @property
    def dtype(self) -> Dtype:
        """The type of an MMA of bytes."""
        return "int8" if self.narrow == "i8" else "fp8"

    @property
    def in_words(self) -> str:
        """Its element type in memory, as torch calls it."""
        return WORDS.get(self.narrow, "fp8")


def runs_on_fma(kernel: Kernel, op: Operation) -> bool:
    """Whether the FMA units do a `tl.dot`: its result has a layout of no MMA."""
    types = tensor_types(op.rest.partition(" : ")[2]) if op.name == "tt.dot" else []
    return bool(types) and kernel.layouts.kind(types[-1].layout) in ("blocked", "linear")


def widened_operands(kernel: Kernel, op: Operation) -> dict[int, Widened]:
    """By their places, the operands (0, 1) that were narrower in memory."""
    return {place: one for place in (0, 1) if (one := _widening(kernel, op, place)) is not None}


def to_narrow(widened: Mapping[int, Widened]) -> str:
    """How to give `tl.dot` operands of 16 bits, of which at least one has as many in memory."""
    halves = [one for one in widened.values() if not one.is_byte]
    narrow = halves[0].in_words
    if len(widened) < 2:
        advice = f"if {narrow} is precise enough, convert the other operand to {narrow}, and give tl.dot both"
    elif len(halves) < 2:
        byte = next(one for one in widened.values() if one.is_byte)
        advice = f"convert the {byte.in_words} operand to {narrow}, which is exact, and give tl.dot both"
    else:
        advice = f"give tl.dot the {narrow} operands without a conversion: tl.dot sums in float32 anyway"
    return advice + scaled_after(widened.values())


def scaled_after(widened: Iterable[Widened]) -> str:
    """Where the scales go; empty without any."""
    return "; multiply its result by the scales" if any(one.is_scaled for one in widened) else ""


def _widening(kernel: Kernel, op: Operation, place: int) -> Widened | None:
    stores = (
        one
        for one in kernel.named("ttg.local_store", "ttng.tmem_store")
        if one.parent is op.parent and one.operands[1:2] == op.operands[place : place + 1]
    )
    stored = next(stores, None)  # into the buffer that the MMA reads
    maker = kernel.values.maker(op, place) if stored is None else kernel.values.maker(stored, 0)
    summed, is_scaled = (-1, -2)[place], False
    for _ in range(_LONGEST):
        if maker is None:
            return None
        if maker.name in _WIDENING and (found := _of_types(maker)) is not None:
            return replace(found, is_scaled=is_scaled)
        if maker.name == "arith.mulf" and (scaled := _scaled(kernel, maker, summed)) is not None:
            is_scaled = True
            maker = kernel.values.maker(maker, scaled)
        elif maker.name in _PASSED:
            summed = -3 - summed if maker.name in _TRANSPOSED else summed
            maker = kernel.values.maker(maker, 0)
        else:
            return None
    return None


def _scaled(kernel: Kernel, product: Operation, summed: int) -> int | None:
    """Which factor of an elementwise product is scaled by the other, which does not change along dimension `summed`.

    None if neither is. A scale may be widened in its turn.
    """
    for place in (1, 0):
        maker = kernel.values.maker(product, place)
        while maker is not None and maker.name in ("ttg.convert_layout", *_WIDENING):
            maker = kernel.values.maker(maker, 0)
        if maker is None:
            continue
        types = tensor_types(maker.rest.rpartition(" : ")[2])
        if maker.name in ("tt.splat", "arith.constant") or (
            maker.name == "tt.broadcast" and types and types[0].shape[summed] == 1
        ):
            return 1 - place
    return None


def _of_types(op: Operation) -> Widened | None:
    """What a conversion makes of 16 or 8 bits; None where it makes them no wider, or of what is not in memory so."""
    types = tensor_types(op.rest.rpartition(" : ")[2])
    if len(types) != 2 or not re.fullmatch(r"b?f16|i8|f8\w+", types[0].element):
        return None
    return Widened(types[0].element, types[1].element) if types[1].bytes > types[0].bytes else None
