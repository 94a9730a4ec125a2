"""Products with an identity matrix: they give the other operand as it is, and only move it into registers."""

import math
from collections.abc import Iterator

import numpy as np

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, FLOATS, chooses_one, source
from kperf.diagnose.reading.operations import MMAS
from kperf.ir.outcomes import constant_number
from kperf.ir.ttgir import Operation

_PASSED = (*CASTS, *FLOATS, "tt.fp_to_fp", "ttg.local_alloc", "ttg.local_load", "tt.trans", "ttg.memdesc_trans")
_SIDES = 2


def identity_products(kernel: Kernel) -> Iterator[Operation]:
    """MMAs of which an operand is the identity, by a comparison of its rows and columns."""
    for mma in kernel.named(*MMAS):
        if any(_is_identity(kernel, source(kernel.values, mma, place, _PASSED)) for place in (0, 1)):
            yield mma


def _is_identity(kernel: Kernel, made: Operation | None) -> bool:
    """Whether an operation gives 1 where a comparison holds, which it does on the diagonal alone, and else 0."""
    if made is not None and made.name == "arith.cmpi":  # and is made a number
        value = kernel.values.of(made.parent, made.results[0])
    elif made is not None and chooses_one(kernel.values, made) and _number(kernel, made, 1) == 1:
        value = kernel.values.operand(made, 0)
    else:
        return False
    if value is None or value.loaded or value.arguments or value.program or value.iterations:
        return False
    if value.numbers.ndim != _SIDES:
        return False
    rows, columns = value.numbers.shape
    return np.array_equal(value.numbers != 0, np.eye(rows, columns, dtype=bool))


def _number(kernel: Kernel, op: Operation, place: int) -> float:
    """What each element of an operand is that a constant makes; NaN of another one."""
    made = kernel.values.maker(op, place)
    return constant_number(made) if made is not None else math.nan
