"""Integer divisions of tensors, and what they cost."""

from collections.abc import Iterable

import numpy as np

from kperf.arch.instructions import (
    CALLED_INTEGER_DIVISION,
    CONSTANT_INTEGER_DIVISION,
    LONG_INTEGER_DIVISION,
    SHORT_INTEGER_DIVISION,
)
from kperf.diagnose.reading.kernel import Kernel
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

DIVISIONS = ("arith.divsi", "arith.remsi", "arith.divui", "arith.remui")
LEAST_ELEMENTS = 32
"""Of a tensor whose divisions count."""
SHORT, LONG, CALLED = SHORT_INTEGER_DIVISION, LONG_INTEGER_DIVISION, CALLED_INTEGER_DIVISION
_MIXED = ("arith.muli", "arith.xori", "arith.shli")
"""What hashes are made of: of loaded numbers in 64 bits it sets the upper halves."""
_RUN_TIME = ("tt.get_program_id", "tt.get_num_programs")


def division_cycles(kernel: Kernel, divisions: Iterable[Operation]) -> float:
    """Cycles of an SM in which a CTA does these divisions once."""
    cycles = kernel.threads / kernel.arch.fp32_per_cycle
    return sum(numbers_of_thread(kernel, op) * instructions_of(kernel, op) for op in divisions) * cycles


def distinct(divisions: Iterable[Operation]) -> list[Operation]:
    """In the order of the text, a quotient and a remainder of the same numbers once."""
    return sorted({op.operands[:2]: op for op in divisions}.values(), key=lambda op: op.line)


def is_of_elements(kernel: Kernel, op: Operation) -> bool:
    """Whether it divides many numbers by one that is known at run time; of data no other data are the divisor."""
    types = tensor_types(op.rest) if op.name in DIVISIONS else ()
    if not types or types[0].size < LEAST_ELEMENTS or divisor_of(kernel, op):
        return False
    divisor = kernel.values.operand(op, 1)
    return not is_data(kernel, op) or (divisor is not None and not divisor.loaded and bool(divisor.arguments))


def divisor_of(kernel: Kernel, op: Operation) -> int:
    """A positive number that is known at compile time; else 0."""
    divisor = kernel.values.operand(op, 1)
    if divisor is None or divisor.arguments or divisor.loaded or divisor.iterations:
        return 0
    if any(source.name in _RUN_TIME for source in kernel.values.sources(op, 1)):
        return 0
    return max(int(divisor.numbers.flat[0]), 0)


def is_data(kernel: Kernel, op: Operation) -> bool:
    """Whether it divides what was loaded, or computed of no index, and no address nor mask is made of the result."""
    value = kernel.values.operand(op, 0)
    return (value is None or value.loaded) and op.line not in kernel.index_lines


def numbers_of_thread(kernel: Kernel, op: Operation) -> int:
    """Each of them is divided once, in however many threads and columns of a tile it is."""
    tensor = tensor_types(op.rest)[0]
    places = kernel.layouts.elements(tensor)
    return len(np.unique(places[0, :, 0], axis=0)) if places is not None else max(tensor.size // kernel.threads, 1)


def instructions_of(kernel: Kernel, op: Operation) -> int:
    """Of one division. What is known to have 32 bits is divided so, whatever the source says: nothing is called."""
    if divisor_of(kernel, op):
        return CONSTANT_INTEGER_DIVISION[max(tensor_types(op.rest)[0].bytes, 4)]
    called = kernel.code is None or any(one.opcode.startswith("CALL") for one in kernel.code.instructions)
    if tensor_types(op.rest)[0].element != "i64" or not called:
        return SHORT
    is_long = _is_mixed(kernel, op) if is_data(kernel, op) else max(kernel.lengths.values(), default=0) > 1 << 32
    return CALLED if is_long else LONG


def _is_mixed(kernel: Kernel, op: Operation) -> bool:
    """Whether what is divided is a hash: identifiers that are only loaded are mostly small, whatever their type."""
    return any(
        one.name in _MIXED
        and "i64" in one.rest
        and any((value := kernel.values.operand(one, place)) is not None and value.loaded for place in (0, 1))
        for one in kernel.values.sources(op, 0)
    )
