"""Operands of an MMA that were narrower numbers in memory and were widened before it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kperf.arch import Dtype
from kperf.diagnose.kernel import Kernel
from kperf.diagnose.operations import MMAS
from kperf.diagnose.rule import Rule
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_PASSED = ("ttg.convert_layout", "ttg.local_alloc", "ttg.local_load", "tt.trans", "ttg.memdesc_trans", "tt.fp_to_fp")
_WIDENING = ("arith.extf", "tt.fp_to_fp", "arith.sitofp")
_OF_CUDA = ("f8E4M3FN", "f8E5M2")
"""Bytes that AMD's older GPUs multiply as wider floats: theirs are others (FNUZ)."""
_WORDS = {"bf16": "bfloat16", "f16": "float16", "f32": "float32", "i8": "int8"}


@dataclass(frozen=True)
class _Widened:
    """An operand of an MMA: its element type in memory, and that which the MMA is given."""

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


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of 16-bit floats that are made float32, and of MMAs whose operands both are bytes and are made floats."""
    for op in kernel.named(*MMAS):
        widened = {place: one for place in (0, 1) if (one := _widening(kernel, op, place)) is not None}
        of_bytes = [one for one in widened.values() if one.is_byte]
        if len(of_bytes) == 2:
            yield from _of_bytes(kernel, op, *of_bytes)
        for place, one in widened.items():
            if one.wide == "f32" and not one.is_byte:
                yield _of_halves(kernel, op, place, one, both=len(widened) == 2)


def _of_halves(kernel: Kernel, op: Operation, place: int, widened: _Widened, *, both: bool) -> Finding:
    """Severe where both operands are widened; else the other one is float32."""
    element = _WORDS[widened.narrow]
    return kernel.finding(
        RULE.id,
        op,
        "high" if both else "medium",
        f"an operand of the MMA is {element} in memory, and is converted to float32 "
        f"{'before the MMA' if both else 'as the other operand is float32'}, which at least halves the tensor cores' "
        "rate",
        f"give tl.dot the {element} operands without a conversion: tl.dot sums in float32 anyway"
        if both
        else f"if {element} is precise enough, convert the other operand to {element}, and give tl.dot both",
        {"operand": place, "loaded_as": element},
        estimate=(3.0, 1.3, 8.0) if both else (1.8, 1.0, 4.0),
    )


def _of_bytes(kernel: Kernel, op: Operation, one: _Widened, other: _Widened) -> Iterator[Finding]:
    """Where the GPU multiplies bytes faster; a single operand of bytes has to be as wide as the other."""
    rates = kernel.arch.flop_per_cycle
    faster = rates.get(one.dtype, 0) / rates["tf32" if one.wide == "f32" else "bf16"]
    known = kernel.arch.backend == "cuda" or not {one.narrow, other.narrow} & set(_OF_CUDA)
    if one.dtype != other.dtype or faster <= 1 or not known:
        return
    sums = "int32" if one.dtype == "int8" else "float32 (with fewer bits on Hopper: max_num_imprecise_acc)"
    yield kernel.finding(
        RULE.id,
        op,
        "medium",
        f"both operands of the MMA are {_words(one)} in memory, and are converted to {_words(one, wide=True)} "
        f"before the MMA: the tensor cores multiply {one.dtype} {faster:.0f} times as fast",
        f"give tl.dot the {one.dtype} operands, which it sums in {sums}, and then scale the sum",
        {"loaded_as": _words(one), "rate": faster},
        estimate=(1.3, 1.0, 2 * faster),
    )


def _words(widened: _Widened, *, wide: bool = False) -> str:
    element = widened.wide if wide else widened.narrow
    return _WORDS.get(element, "fp8")


def _widening(kernel: Kernel, op: Operation, place: int) -> _Widened | None:
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


def _of_types(op: Operation) -> _Widened | None:
    """What a conversion makes of 16 or 8 bits; None where it makes them no wider, or of what is not in memory so."""
    types = tensor_types(op.rest.rpartition(" : ")[2])
    if len(types) != 2 or not re.fullmatch(r"b?f16|i8|f8\w+", types[0].element):
        return None
    return _Widened(types[0].element, types[1].element) if types[1].bytes > types[0].bytes else None


RULE = Rule("widened-operands", "Operands widened before an MMA", check)
