"""Index arithmetic of TTGIR, carried out on numbers."""

import re
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation

POINTER = re.compile(r"!tt\.ptr<([^<>]*?)(?:, \d+)?>")
"""The type of a pointer; its group is the type of what it points to."""


def _not_0(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Divisors. What is divided by 0 is not said."""
    return np.where(numbers == 0, 1, numbers)


COMPARE: dict[str, Callable[..., NDArray[np.bool_]]] = {
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "ult": np.less, "sle": np.less_equal, "ule": np.less_equal,
    "sgt": np.greater, "ugt": np.greater, "sge": np.greater_equal, "uge": np.greater_equal,
}  # fmt: skip
_BINARY: dict[str, Callable[..., NDArray[np.int64]]] = {
    "arith.addi": np.add, "arith.subi": np.subtract, "arith.muli": np.multiply, "arith.andi": np.bitwise_and,
    "arith.ori": np.bitwise_or, "arith.xori": np.bitwise_xor, "arith.maxsi": np.maximum, "arith.minsi": np.minimum,
    "arith.maxui": np.maximum, "arith.minui": np.minimum, "arith.shli": lambda a, b: a << np.clip(b, 0, 62),
    "arith.shrsi": lambda a, b: a >> np.clip(b, 0, 62), "arith.shrui": lambda a, b: a >> np.clip(b, 0, 62),
    "arith.divsi": lambda a, b: (a - np.fmod(a, _not_0(b))) // _not_0(b), "arith.divui": lambda a, b: a // _not_0(b),
    "arith.remsi": lambda a, b: np.fmod(a, _not_0(b)), "arith.remui": lambda a, b: a % _not_0(b),
    "arith.floordivsi": lambda a, b: a // _not_0(b), "arith.ceildivsi": lambda a, b: -(-a // _not_0(b)),
}  # fmt: skip
_SAME = {
    "arith.extsi", "arith.extui", "arith.trunci", "arith.index_cast", "arith.index_castui", "ttg.convert_layout",
    "tt.bitcast", "tt.int_to_ptr", "tt.ptr_to_int", "arith.bitcast", "tt.unsplat",
}  # fmt: skip
SHIFTS = {
    *_SAME, "arith.addi", "arith.subi", "tt.addptr", "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape",
    "tt.trans",
}  # fmt: skip
"""What moves all elements by the same number, or leaves them."""
MOVES = SHIFTS - {"arith.addi", "arith.subi", "tt.addptr"}
"""What leaves them."""


def apply(op: Operation, numbers: list[NDArray[np.int64]]) -> NDArray[np.int64] | None:  # noqa: PLR0911 (likewise)
    """An operation on the numbers of its operands; None if it is not one of indices."""
    name, first = op.name, numbers[0]
    if name in _BINARY and len(numbers) == 2:
        return _BINARY[name](first, numbers[1])
    if name in _SAME:
        return first
    if name == "math.absi":
        return np.abs(first)
    types = tensor_types(op.rest)
    if name == "arith.cmpi":
        compare = COMPARE.get(op.rest.split(",")[0].strip())
        return compare(first, numbers[1]).astype(np.int64) if compare else None
    if name == "arith.select" and len(numbers) == 3:
        return np.where(first != 0, numbers[1], numbers[2])
    if name == "tt.addptr":
        element = POINTER.search(op.rest)
        return first + numbers[1] * (element_bytes(element[1]) if element else 1)
    if name in ("tt.splat", "tt.broadcast") and types:
        return np.broadcast_to(first, types[-1].shape)
    if name == "tt.expand_dims":
        axis = re.search(r"axis = (\d+)", op.rest)
        return np.expand_dims(first, int(axis[1])) if axis else None
    if name == "tt.reshape" and types and types[-1].size == first.size:
        return first.reshape(types[-1].shape)
    if name == "tt.trans":
        order = re.search(r"order = array<i32: ([\d, ]+)>", op.rest)
        return np.transpose(first, [int(dim) for dim in order[1].split(",")]) if order else None
    return None
