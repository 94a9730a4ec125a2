"""Work that a mask removes: tiles of a causal mask or window or behind a length, rows of tiles, CTAs without a row."""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from kperf.arch import operations
from kperf.diagnose.analyses.bound import bound_of
from kperf.diagnose.analyses.lengths import Idle, idle_iterations
from kperf.diagnose.analyses.masked_rows import MaskedRows, masked_rows
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.masks import conditions_of
from kperf.diagnose.reading.operations import LOOPS, MMAS, STORES, inside, mask_place, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import SEVERE_GAIN
from kperf.ir.loops import BOUNDS
from kperf.ir.outcomes import LARGE, constant_number
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS, Value
from kperf.trace.analyze.finding import Finding

_LESS = ("slt", "sle", "ult", "ule")
_GREATER = ("sgt", "sge", "ugt", "uge")
_IF_TRUE, _IF_FALSE = 1, 2
"""Places of the choices among the operands of `arith.select`."""
_ABS = "math.absi"
_ADDS = ("arith.addf", "arith.subf")
_ADDED_TO = 2
"""Place of the sum that an MMA continues among its operands."""
_CALIBRATED = 2 / 3
"""Of the logarithm of all iterations over those that do something, which alone load: 14.6 times as many were 6.0 x as
fast (H100, paged attention)."""
_CALIBRATED_ROWS = 1 / 2
"""Of the logarithm of all iterations over those in which a row takes part: the loop is short then, and its first loads
and the stores take as long as before. Not fitted: of 8 times as many iterations 2.2 x were measured (H100, transposed
convolution whose shorter loop did not pipeline its loads)."""
_SAME = ("tt.broadcast", "tt.splat", "ttg.convert_layout", "arith.extsi", "arith.extui", "arith.trunci")
"""Of the same number as their operand."""
_WRITES = operations("store", "atomic")
_MASKED = (*STORES, "tt.atomic_rmw")
"""Those that may have a mask: TMA writes its box whatever the rows are."""
_LOWER, _UPPER, _ = BOUNDS
_ASKED = {"scf.if": (0,), "cf.cond_br": (0,), "scf.condition": (0,), "scf.for": (_LOWER, _UPPER)}
"""Operands that decide what runs."""


@dataclass(frozen=True)
class _Side:
    """The tiles that a comparison of rows with columns removes: behind the loop's right end, or before its beginning.

    ctas: the operations, by their lines, that say which rows the CTA has; there are `rows` of them.
    """

    mask: Operation
    ctas: frozenset[int]
    rows: int
    behind: bool


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of loops whose bounds do not depend on what a mask keeps: on the CTA's rows, or on the length of a sequence."""
    for loop in kernel.named("scf.for"):
        sides = [side for op in own(loop) for side in _removed(kernel, loop, op)]
        computed = [side for side in sides if not _is_bounded(kernel, loop, side)]
        if computed:
            yield _finding(kernel, loop, computed)
    yield from (_idle(kernel, idle) for idle in idle_iterations(kernel))
    for loop in kernel.main_loops[:1]:
        yield from _empty(kernel, loop)
    yield from (_of_rows(kernel, rows) for rows in islice(masked_rows(kernel), 1))


def _finding(kernel: Kernel, loop: Operation, sides: Sequence[_Side]) -> Finding:
    before, behind = any(not side.behind for side in sides), any(side.behind for side in sides)
    bounds = "bounds" if before and behind else "beginning" if before else "end"
    do = "do" if before and behind else "does"
    masks = lines_of((side.mask for side in sides), loop) or "the same line"
    begin = "begin the loop at the first tile in which the CTA's rows keep a column"
    end = "end the loop after the last column that the CTA's rows keep, at tl.minimum(n, (block + 1) * BLOCK)"
    advice = "; ".join(text for text, wanted in ((begin, before), (end, behind)) if wanted)
    return kernel.finding(
        RULE.id,
        loop,
        "high" if any(op.name in MMAS for op in own(loop)) else "medium",
        f"the mask of {masks} removes whole tiles, and the loop computes these tiles all the same: the loop's "
        f"{bounds} {do} not depend on which rows the CTA has",
        f"{advice}; tiles in which the mask removes nothing need no mask",
        {"rows": sides[0].rows, "before": int(before), "behind": int(behind)},
        confidence="medium",
        estimate=(2.5, 1.0, 8.0) if before else (1.6, 1.0, 2.0),
    )


def _idle(kernel: Kernel, idle: Idle) -> Finding:
    """Of iterations that do nothing. If no launch says how many, they are taken to be few more than a third."""
    where = lines_of([idle.mask], idle.loop) or "the same line"
    which = "behind the length" if idle.is_behind else "before the position"
    message = f"iterations {which} that a CTA loads do nothing, by the mask of {where}, but the loop runs them all"
    estimate, evidence = (1.6, 1.0, 8.0), {"before": int(not idle.is_behind), "behind": int(idle.is_behind)}
    if idle.count is not None:
        without, count = idle.count
        message = f"{without} of {count} iterations do nothing, by the mask of {where}"
        most = count / max(count - without, 1)
        estimate = (most**_CALIBRATED, 1.0, most)
        evidence |= {"idle": without, "iterations": count}
    return kernel.finding(
        RULE.id,
        idle.loop,
        "high" if idle.count is not None and estimate[0] >= SEVERE_GAIN else "medium",
        message,
        "end the loop at the length, as range(0, tl.minimum(n, length), BLOCK) or range(tl.cdiv(length, BLOCK))"
        if idle.is_behind
        else "begin the loop at the tile of that position",
        dict(evidence),
        confidence="low" if idle.count is None else "medium",
        estimate=estimate,
    )


def _of_rows(kernel: Kernel, rows: MaskedRows) -> Finding:
    """Of rows that take part in few iterations: the loop needs no others if a tile's rows take part in the same."""
    fewer = rows.iterations / rows.taking_part
    fast = bound_of(kernel).unit == "tensor core"
    where = lines_of([rows.load], rows.loop) or "the same line"
    estimate = (fewer**_CALIBRATED_ROWS, 1.0, fewer) if fast else (1.1, 1.0, fewer)
    return kernel.finding(
        RULE.id,
        rows.loop,
        "low" if not fast else "high" if estimate[0] >= SEVERE_GAIN else "medium",
        f"{rows.side} of an MMA's tile take part in {rows.taking_part:.3g} of {rows.iterations} iterations each: "
        f"the mask of {where} makes {1 - rows.share:.0%} of the tile 0, and the MMA multiplies all of it"
        + ("" if fast else ", although loads take longer than this work"),
        f"let a tile hold {rows.side} that take part in the same iterations (for a stride S: index = (block * BLOCK + "
        "tl.arange(0, BLOCK)) * S + phase, with phase = tl.program_id(0) % S), and let the loop run over these "
        "iterations only, as range(first, n, S)",
        {"iterations": rows.iterations, "taking_part": rows.taking_part, "share": rows.share},
        confidence="medium",
        estimate=estimate,
    )


def _empty(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Of a kernel that stores no row at or behind a number that it loads, and that runs its loop for such rows too."""
    counts = [_counts(kernel, op) if op.name in _MASKED else {} for op in kernel.named(*_WRITES)]
    common = [count for count in (counts or [{}])[0] if all(count in others for others in counts)]
    asked = {
        source.line
        for op in kernel.named(*_ASKED)
        for place in _ASKED[op.name]
        for source in kernel.values.sources(op, place)
    }
    if not common or any(count in asked for count in common):
        return
    where = lines_of([counts[0][common[0]]], loop) or "the same line"
    yield kernel.finding(
        RULE.id,
        loop,
        "medium",
        f"a CTA whose rows are all at or behind the number that it loads stores nothing, by the mask of {where}, but "
        "runs the whole loop",
        "return before the loop if the CTA's first row is not less than that number",
        {"empty_ctas": 1},
        confidence="medium",
        estimate=(1.5, 1.0, 4.0),
    )


def _counts(kernel: Kernel, op: Operation) -> dict[int, Operation]:
    """Loaded numbers below which a store's rows are, by the lines of their loads; each with the comparison."""
    found: dict[int, Operation] = {}
    for one, negated in conditions_of(kernel, op, mask_place(op)):
        predicate = one.rest.split(",")[0].strip()
        if one.name != "arith.cmpi" or predicate not in (*_LESS, *_GREATER):
            continue
        rows, count = (0, 1) if (predicate in _LESS) != negated else (1, 0)
        names = {source.name for source in kernel.values.sources(one, rows, until=READS)}
        if "tt.get_program_id" in names and "tt.load" not in names:
            numbers = kernel.values.sources(one, count, until=READS)
            found |= {load.line: one for load in numbers if load.name == "tt.load" and "tensor<" not in load.rest}
    return found


def _removed(kernel: Kernel, loop: Operation, op: Operation) -> Iterator[_Side]:
    """What a masked choice or load of a loop removes, unless a branch around it may leave the tile out already."""
    if op.name == "tt.load":
        place, inverse = mask_place(op), False
    elif op.name == "arith.select" and (counts_for_nothing := _nothing(kernel, loop, op)):
        place, inverse = 0, counts_for_nothing == _IF_TRUE
    else:
        return
    if _may_be_left_out(op, loop):
        return
    for mask, negated in conditions_of(kernel, op, place, either=inverse):
        yield from _sides(kernel, loop, mask, keeps=inverse == negated)


def _nothing(kernel: Kernel, loop: Operation, op: Operation) -> int:
    """Which choice of a select is a constant that counts for nothing in a maximum or a sum; 0 without one.

    Of two, as in `s + tl.where(keep, 0, -1e6)`, the large negative number, or of what is subtracted the large positive
    one. A 0 that is added to scores leaves them.
    """
    numbers = {place: _constant(kernel, op, place) for place in (_IF_TRUE, _IF_FALSE)}
    if not any(number == 0 or abs(number) >= LARGE for number in numbers.values()):
        return 0
    uses = [(user, place) for user in own(loop) for place in _places_of(kernel, user, op)]
    sign = -1 if any(user.name == "arith.subf" and place == 1 for user, place in uses) else 1
    large = [place for place, number in numbers.items() if sign * number <= -LARGE]
    zeros = [place for place, number in numbers.items() if number == 0]
    if not large and any(_is_term(kernel, user, place) for user, place in uses):
        return 0
    return next(iter([*large, *zeros]), 0) if len(large) < 2 else 0


def _places_of(kernel: Kernel, user: Operation, op: Operation) -> list[int]:
    """Which operands of `user` are what `op` computes."""
    return [place for place in range(len(user.operands)) if _made_by(kernel, user, place) is op]


def _is_term(kernel: Kernel, user: Operation, place: int) -> bool:
    """Whether an operand is a term of what an MMA makes, as a bias of scores is, or an exponent."""
    if user.name not in _ADDS:
        return user.name.startswith("math.exp") or (user.name in MMAS and place == _ADDED_TO)
    is_carried = kernel.values.maker(user, 1 - place) is None  # a sum over iterations
    return not is_carried and any(one.name in MMAS for one in kernel.values.sources(user, 1 - place, until=READS))


def _made_by(kernel: Kernel, user: Operation, place: int) -> Operation | None:
    """The operation that computes an operand, in whatever layout."""
    made = kernel.values.maker(user, place)
    while made is not None and made.name in _SAME:
        made = kernel.values.maker(made, 0)
    return made


def _constant(kernel: Kernel, op: Operation, place: int) -> float:
    """The number that is each element of an operand of floats; NaN if there is none."""
    made = kernel.values.maker(op, place)
    return constant_number(made) if made is not None and made.name == "arith.constant" else math.nan


def _may_be_left_out(op: Operation, loop: Operation) -> bool:
    """Whether a branch around a mask has work of the tile too: MMAs, where the loop has any."""
    mmas = [one for one in own(loop) if one.name in MMAS]
    branches = [one for one in own(loop) if one.name == "scf.if" and op in inside(one)]
    return any(not mmas or any(one in inside(branch) for one in mmas) for branch in branches)


def _sides(kernel: Kernel, loop: Operation, mask: Operation, *, keeps: bool) -> Iterator[_Side]:
    """What a comparison removes of a tile, if it says which elements are kept, or else which are removed.

    `abs(row - column) < W` removes as `row - column < W` does, and on the other side.
    """
    predicate = mask.rest.split(",")[0].strip()
    if mask.name != "arith.cmpi" or predicate not in (*_LESS, *_GREATER):
        return
    is_less = (predicate in _LESS) == keeps
    operands = [(mask, 0), (mask, 1)]
    distances = [(place, made) for place in (0, 1) if (made := _made_by(kernel, mask, place)) and made.name == _ABS]
    for place, made in distances:
        if is_less != (place == 0):
            return  # it keeps what is far away
        operands[place] = (made, 0)
    side = _side(kernel, loop, mask, operands, is_less=is_less)
    if side is not None:
        yield side
        yield from [replace(side, behind=not side.behind)] if distances else []


def _side(
    kernel: Kernel, loop: Operation, mask: Operation, operands: Sequence[tuple[Operation, int]], *, is_less: bool
) -> _Side | None:
    """What is removed of a tile whose rows are the CTA's, and whose columns are the iteration's.

    The operands that `mask` compares are sums: `row + i >= column + j`, `row - column >= j - i`, or any other order.
    What the iteration adds moves the tile along its columns. is_less: whether elements are kept whose left sum is the
    less one.
    """
    left, right = (kernel.values.operand(user, place) for user, place in operands)
    if left is None or right is None or left.scattered or right.scattered:
        return None
    distance = left.numbers - right.numbers
    signs = {axis: sign for axis in range(distance.ndim) if (sign := _direction(distance, axis))}
    if sorted(signs.values()) != [-1, 1]:
        return None  # an index into a matrix, and no distance of its row from its column
    addends = [one for use, sign in zip(operands, (1, -1), strict=True) for one in _addends(kernel, loop, *use, sign)]
    moved = {one.axis_in(signs) for one in addends if loop.line in one.value.iterations}
    columns = moved.pop() if len(moved) == 1 else None
    ctas = frozenset(
        source.line
        for one in addends
        if one.axis_in(signs) != columns
        for source in kernel.values.sources(one.user, one.place, until=READS)
        if source.name in ("tt.get_program_id", *LOOPS)
    )
    if columns is None or not ctas:
        return None
    (rows,) = set(signs) - {columns}
    return _Side(mask, ctas, distance.shape[rows], behind=(signs[columns] > 0) == is_less)


def _direction(numbers: NDArray[np.int64], axis: int) -> int:
    """1 if numbers grow along an axis, -1 if they fall, 0 if they stay. Rows of several heads begin again at each."""
    steps = np.diff(numbers, axis=axis)
    return int(np.sign(np.median(steps[steps != 0]))) if np.any(steps) else 0


@dataclass(frozen=True)
class _Addend:
    """A part of a sum: an operand of `user`, with its numbers in the dimensions of the sum, and 1 or -1."""

    user: Operation
    place: int
    value: Value
    sign: int

    def axis_in(self, signs: Mapping[int, int]) -> int | None:
        """The axis along which it lies, or a scalar moves the sum; None of what lies along no axis alone.

        signs: whether the sum grows or falls along an axis.
        """
        along = {axis for axis in signs if _direction(self.value.numbers, axis)} if self.value.numbers.ndim else set()
        along = along or {axis for axis, sign in signs.items() if sign == self.sign}
        return along.pop() if len(along) == 1 else None


def _addends(
    kernel: Kernel, loop: Operation, user: Operation, place: int, sign: int, axes: tuple[int, ...] = ()
) -> Iterator[_Addend]:
    """The parts of the sum that an operand is. A scalar is one part, unless it adds to the iteration what is not of it.

    axes: dimensions that `expand_dims` adds to the operand's own, in this order.
    """
    value, made = kernel.values.operand(user, place), kernel.values.maker(user, place)
    if value is None:
        return
    mixed = loop.line in value.iterations and (value.program or value.iterations - {loop.line})
    if made is not None and made.name in _SAME:
        yield from _addends(kernel, loop, made, 0, sign, axes)
    elif made is not None and made.name == "tt.expand_dims" and (added := re.search(r"axis = (\d+)", made.rest)):
        yield from _addends(kernel, loop, made, 0, sign, (int(added[1]), *axes))
    elif made is not None and made.name in ("arith.addi", "arith.subi") and (value.numbers.ndim or mixed):
        yield from _addends(kernel, loop, made, 0, sign, axes)
        yield from _addends(kernel, loop, made, 1, sign if made.name == "arith.addi" else -sign, axes)
    else:
        numbers = value.numbers
        for axis in axes if numbers.ndim else ():
            numbers = np.expand_dims(numbers, axis)
        yield _Addend(user, place, replace(value, numbers=numbers), sign)


def _is_bounded(kernel: Kernel, loop: Operation, side: _Side) -> bool:
    """Whether the loop's bound on that side follows the CTA's rows, or they are all that there is."""
    place = _UPPER if side.behind else _LOWER
    bound = kernel.values.sources(loop, place, until=READS)
    first, last = kernel.values.operand(loop, _LOWER), kernel.values.operand(loop, _UPPER)
    known = not any(one is None or one.arguments or one.program or one.loaded for one in (first, last))
    short = known and first is not None and last is not None and int(last.numbers - first.numbers) <= side.rows
    loads = (op for op in bound if op.name in READS)
    return short or _are_among(bound, side.ctas) or any(_is_of_rows(kernel, load, side) for load in loads)


def _are_among(operations: Iterable[Operation], lines: frozenset[int]) -> bool:
    return any(op.line in lines for op in operations)


def _is_of_rows(kernel: Kernel, load: Operation, side: _Side) -> bool:
    """Whether a number is loaded for the CTA's rows, and not for a sequence that many CTAs have parts of.

    With a grid of one axis, or persistent CTAs, one number says both; then by the next CTA, if it has other rows.
    """
    if not _are_among(kernel.values.sources(load, 0), side.ctas):
        return False
    others = [replace(kernel, next_along=axis) for axis in "xyz"]
    others = [one for one in others if _differs(kernel, one, side.mask, 0) or _differs(kernel, one, side.mask, 1)]
    return not others or any(_differs(kernel, one, load, 0) for one in others)


def _differs(kernel: Kernel, other: Kernel, op: Operation, place: int) -> bool:
    here, there = kernel.values.operand(op, place), other.values.operand(op, place)
    return here is None or there is None or not np.array_equal(here.numbers, there.numbers)


RULE = Rule("masked-tiles", "Tiles that a mask removes", check)
