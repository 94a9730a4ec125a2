"""Masks by which a kernel keeps some elements of a tensor, and drops the others."""

from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.reading.kernel import Kernel
from kperf.ir.arithmetic import apply
from kperf.ir.outcomes import constant_number
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value, Values

CASTS = ("ttg.convert_layout", "arith.extf", "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci")
"""What leaves elements where they are, and their values (nearly) the same."""
FLOATS = ("arith.uitofp", "arith.sitofp")
MOVES = ("tt.broadcast", "tt.expand_dims")
_PASSED = ("tt.broadcast", "tt.expand_dims", "tt.splat", "ttg.convert_layout")
"""Through which a condition passes into a mask."""


def masked(values: Values, op: Operation, *, fixed: bool = False) -> Iterator[tuple[NDArray[np.bool_], int]]:
    """The masks that an operation may apply, each with the place of the operand to which it does.

    fixed: only those that are the same in all CTAs, iterations and launches.
    """
    if op.name == "arith.select":
        mask = _mask(values, op, 0, fixed)
        arms = [(place, values.maker(op, place)) for place in (1, 2)]
        constants = [place for place, made in arms if made is not None and made.name == "arith.constant"]
        if mask is not None and len(constants) == 1:
            yield (mask if constants == [2] else ~mask), 3 - constants[0]
    elif op.name in ("arith.mulf", "arith.muli"):
        for place in (0, 1):
            if (mask := _mask(values, op, place, fixed)) is not None:
                yield mask, 1 - place


def _mask(values: Values, op: Operation, place: int, fixed: bool) -> NDArray[np.bool_] | None:
    """Where an operand is not 0, if that does not depend on data; a mask may have become a float before it moved."""
    value = values.operand(op, place)
    if value is not None:
        is_known = is_fixed(value) if fixed else not value.loaded
        is_mask = is_known and np.isin(value.numbers, (0, 1)).all()
        return value.numbers != 0 if is_mask else None
    made = values.maker(op, place)
    if made is None or made.name not in (*CASTS, *FLOATS, *MOVES, "arith.select"):
        return None
    if made.name == "arith.select" and not chooses_one(values, made):
        return None
    mask = _mask(values, made, 0, fixed)
    moved = None if mask is None else apply(made, [mask.astype(np.int64)]) if made.name in MOVES else mask
    return None if moved is None else np.asarray(moved != 0)


def is_fixed(value: Value) -> bool:
    """Whether neither data, nor the CTA, the iteration or an argument of the launch decides a value."""
    return not (value.loaded or value.program or value.iterations or value.arguments)


def chooses_one(values: Values, select: Operation) -> bool:
    """Whether it is a mask as a number: of two constants the second is 0."""
    if select.name != "arith.select":
        return False
    one, other = (values.maker(select, place) for place in (1, 2))
    if one is None or other is None or {one.name, other.name} != {"arith.constant"}:
        return False
    return constant_number(other) == 0


def source(values: Values, op: Operation, place: int, passed: Collection[str] = CASTS) -> Operation | None:
    """What makes an operand, before the operations that are passed."""
    made = values.maker(op, place)
    while made is not None and made.name in passed:
        made = values.maker(made, 0)
    return made


def conditions_of(
    kernel: Kernel, op: Operation, place: int, *, either: bool = False
) -> Iterator[tuple[Operation, bool]]:
    """What makes the conditions that hold together for an operand, each with whether it is negated (`~`).

    They are those between which there is an `and`. either: those of which one is enough, between which there is an
    `or`, instead.
    """
    todo = [(kernel.values.maker(op, place), False)]
    while todo:
        made, negated = todo.pop()
        if made is None:
            continue
        if made.name in (*_PASSED, "arith.ori" if either != negated else "arith.andi"):
            todo += [(kernel.values.maker(made, index), negated) for index in range(len(made.operands))]
        elif made.name == "arith.xori" and (other := kernel.values.maker(made, 1)) and other.name == "arith.constant":
            todo.append((kernel.values.maker(made, 0), not negated))  # the constant is true: with false nothing is left
        else:
            yield made, negated
