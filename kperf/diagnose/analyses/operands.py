"""Operands of `tl.dot`: what they were in memory, and what multiplies them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kperf.arch import Dtype
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import mma_shape
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation

_PASSED = ("ttg.convert_layout", "ttg.local_alloc", "ttg.local_load", "tt.trans", "ttg.memdesc_trans", "tt.fp_to_fp")
WIDENING = ("arith.extf", "tt.fp_to_fp", "arith.sitofp")
_TRANSPOSED = ("tt.trans", "ttg.memdesc_trans")
_LONGEST = 8
"""Operations between a widening and `tl.dot`."""
WORDS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i8": "int8"}
"""Names of element types in torch."""


@dataclass(frozen=True)
class Widened:
    """An operand: its element type in memory, and the wider one that `tl.dot` is given.

    is_scaled: whether it is also multiplied by numbers that are the same along the dimension that `tl.dot` sums over.
    by: what converts it.
    """

    narrow: str
    wide: str
    by: Operation
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


def dot_of(kernel: Kernel, mma: Operation) -> Operation:
    """The `tl.dot` as it is written of which an MMA was made; the MMA itself if that is not known.

    MMAs of operands that the compiler splits have the lines of the operands.
    """
    dots = list(kernel.as_written.named("tt.dot")) if kernel.as_written is not None else []
    shape = mma_shape(mma)
    alike = [dot for dot in dots if shape is not None and (mma_shape(dot) or ())[:2] == shape[:2]]
    if any(frame_of(dot) == frame_of(mma) for dot in dots) or len({frame_of(dot) for dot in alike}) != 1:
        return mma
    return alike[0]


def widened_operands(kernel: Kernel, op: Operation) -> dict[int, Widened]:
    """By their places, the operands (0, 1) that were narrower in memory."""
    return {place: one for place in (0, 1) if (one := _widening(kernel, op, place)) is not None}


def to_narrow(widened: Mapping[int, Widened], first: str = "") -> str:
    """How to give `tl.dot` operands that are no wider than in memory: of 16 bits where one has as many there.

    first: what to do with the operand before the other one is converted.
    """
    words = [one.in_words for one in sorted(widened.values(), key=lambda one: one.is_byte)]
    narrow = words[0]
    if len(widened) < 2:
        advice = f"if {narrow} is precise enough, {first}convert the other operand to {narrow}, and give tl.dot both"
    elif words[0] == words[1]:
        sums = "int32, which is exact" if narrow == "int8" else "float32 anyway"
        advice = f"give tl.dot the {narrow} operands without a conversion: tl.dot sums in {sums}"
    elif all(one.is_byte for one in widened.values()):
        advice = "convert both operands to bfloat16, which is exact, and give tl.dot both"
    elif any(one.is_byte for one in widened.values()):
        advice = f"convert the {words[1]} operand to {narrow}, which is exact, and give tl.dot both"
    else:
        advice = f"if {narrow} is precise enough, convert the {words[1]} operand to {narrow}, and give tl.dot both"
    return advice + scaled_after(widened.values())


def in_memory(widened: Mapping[int, Widened]) -> str:
    """The element types that operands have in memory: `float16`, `float16 and int8`."""
    return " and ".join(dict.fromkeys(widened[place].in_words for place in sorted(widened)))


def scaled_after(widened: Iterable[Widened]) -> str:
    """Where the scales go, which may differ from one iteration to the next; empty without any."""
    scaled = any(one.is_scaled for one in widened)
    return "; multiply what each tl.dot returns by the scales before you add it to the sum" if scaled else ""


def _widening(kernel: Kernel, op: Operation, place: int) -> Widened | None:
    stores = (
        one
        for one in kernel.named("ttg.local_store", "ttng.tmem_store")
        if one.parent is op.parent and one.operands[1:2] == op.operands[place : place + 1]
    )
    stored = next(stores, None)  # into the buffer that the MMA reads
    maker = kernel.values.maker(op, place) if stored is None else kernel.values.maker(stored, 0)
    summed: int | None = (-1, -2)[place]
    is_scaled = False
    for _ in range(_LONGEST):
        if maker is None:
            return None
        if maker.name in WIDENING and (found := _of_types(maker)) is not None:
            return replace(found, is_scaled=is_scaled)
        if maker.name == "arith.mulf" and (scaled := _scaled(kernel, maker, summed)) is not None:
            is_scaled = True
            maker = kernel.values.maker(maker, scaled)
        elif maker.name in _PASSED and not _narrows(maker):
            summed = _turned(maker, summed) if maker.name in _TRANSPOSED else summed
            maker = kernel.values.maker(maker, 0)
        else:
            return None
    return None


def _narrows(op: Operation) -> bool:
    """Whether a conversion makes narrower numbers: then the operand is of as many bits as its writer wants."""
    types = tensor_types(op.rest.rpartition(" : ")[2])
    return op.name == "tt.fp_to_fp" and len(types) == 2 and types[1].bytes < types[0].bytes


def _turned(op: Operation, summed: int | None) -> int | None:
    """Where a transpose of a matrix has the dimension `summed`; None of tensors with more dimensions."""
    types = tensor_types(op.rest)
    return -3 - summed if summed is not None and types and len(types[0].shape) == 2 else None


def _scaled(kernel: Kernel, product: Operation, summed: int | None) -> int | None:
    """Which factor of an elementwise product is scaled by the other, which does not change along dimension `summed`.

    None if neither is. A scale may be widened in its turn.
    """
    if summed is None:
        return None
    for place in (1, 0):
        maker = kernel.values.maker(product, place)
        while maker is not None and maker.name in ("ttg.convert_layout", *WIDENING):
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
    return Widened(types[0].element, types[1].element, op) if types[1].bytes > types[0].bytes else None
