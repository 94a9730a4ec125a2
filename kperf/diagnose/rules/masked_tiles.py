"""Tiles that a mask removes: of a loop, by a causal mask or a sliding window; of the launch, by a number of rows."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kperf.arch import operations
from kperf.diagnose.kernel import LOOPS, MMAS, STORES, Kernel, conditions_of, lines_of, mask_place, own
from kperf.diagnose.rule import Rule
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Finding

_LESS = ("slt", "sle", "ult", "ule")
_GREATER = ("sgt", "sge", "ugt", "uge")
_NOTHING = re.compile(r"dense<(0xFF800000|0xFC00|0xFF80|-\d\.\d+[eE]\+(?!00|01|02)\d+|-?0\.0+[eE]\+00)>")
"""Minus infinity of float32, float16 and bfloat16, a large negative number, or 0."""
_WRITES = operations("store", "atomic")
_MASKED = (*STORES, "tt.atomic_rmw")
"""Those that may have a mask: TMA writes its box whatever the rows are."""
_LOWER, _UPPER = 1, 2
"""Places of a loop's bounds among the operands of `scf.for`."""
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
    """Of loops whose bounds do not depend on the CTA's rows, where a mask of rows against columns removes tiles."""
    for loop in kernel.named("scf.for"):
        sides = [side for op in own(loop) for side in _removed(kernel, loop, op)]
        computed = [side for side in sides if not _is_bounded(kernel, loop, side)]
        if computed:
            yield _finding(kernel, loop, computed)
    for loop in kernel.main_loops[:1]:
        yield from _empty(kernel, loop)


def _finding(kernel: Kernel, loop: Operation, sides: Sequence[_Side]) -> Finding:
    before, behind = any(not side.behind for side in sides), any(side.behind for side in sides)
    bounds = "bounds do" if before and behind else "beginning does" if before else "end does"
    masks = lines_of((side.mask for side in sides), loop) or "the same line"
    begin = "begin the loop at the first tile of which the CTA's rows keep a column"
    end = "end the loop after the last column that the CTA's rows keep, as tl.minimum(n, (block + 1) * BLOCK)"
    advice = "; ".join(text for text, wanted in ((begin, before), (end, behind)) if wanted)
    return kernel.finding(
        RULE.id,
        loop,
        "high" if any(op.name in MMAS for op in own(loop)) else "medium",
        f"the mask of {masks} removes whole tiles, and the loop computes them all the same: its {bounds} not depend on "
        "which rows the CTA has",
        f"{advice}; tiles of which it removes nothing need no mask",
        {"rows": sides[0].rows, "before": int(before), "behind": int(behind)},
        confidence="medium",
        estimate=(2.5, 1.0, 8.0) if before else (1.6, 1.0, 2.0),
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
        f"a CTA whose rows lie behind the number that it loads stores none of them, by the mask of {where}, and runs "
        "the loop all the same",
        "return before the loop where the CTA's first row is not below that number",
        {"empty_ctas": 1},
        confidence="medium",
        estimate=(1.5, 1.0, 4.0),
    )


def _counts(kernel: Kernel, op: Operation) -> dict[int, Operation]:
    """Loaded numbers below which a store's rows are, by the lines of their loads; each with the comparison."""
    found: dict[int, Operation] = {}
    for one in conditions_of(kernel, op, mask_place(op)):
        predicate = one.rest.split(",")[0].strip()
        if one.name != "arith.cmpi" or predicate not in (*_LESS, *_GREATER):
            continue
        rows, count = (0, 1) if predicate in _LESS else (1, 0)
        names = {source.name for source in kernel.values.sources(one, rows, until=READS)}
        if "tt.get_program_id" in names and "tt.load" not in names:
            numbers = kernel.values.sources(one, count, until=READS)
            found |= {load.line: one for load in numbers if load.name == "tt.load" and "tensor<" not in load.rest}
    return found


def _removed(kernel: Kernel, loop: Operation, op: Operation) -> Iterator[_Side]:
    """What a masked choice or load of a loop removes. A branch around it may leave the tile out already."""
    inverse = op.name == "arith.select" and _is_nothing(kernel, op, 1)
    if op.name == "tt.load":
        place = mask_place(op)
    elif op.name == "arith.select" and (inverse or _is_nothing(kernel, op, 2)):
        place = 0
    else:
        return
    if _is_in_branch(op, loop):
        return
    for mask in conditions_of(kernel, op, place):
        if mask.name == "arith.cmpi" and (side := _side(kernel, loop, mask)) is not None:
            yield replace(side, behind=side.behind != inverse)


def _is_nothing(kernel: Kernel, op: Operation, place: int) -> bool:
    """Whether an operand is a constant that counts for nothing in a maximum or a sum."""
    made = kernel.values.maker(op, place)
    return made is not None and made.name == "arith.constant" and _NOTHING.match(made.rest.strip()) is not None


def _is_in_branch(op: Operation, loop: Operation) -> bool:
    region = op.parent
    while region is not None and region.owner is not loop:
        if region.owner is None or region.owner.name == "scf.if":
            return True
        region = region.owner.parent
    return False


def _side(kernel: Kernel, loop: Operation, mask: Operation) -> _Side | None:
    """What a comparison removes of a tile whose rows are the CTA's, and whose columns are the iteration's."""
    left, right = kernel.values.operand(mask, 0), kernel.values.operand(mask, 1)
    predicate = mask.rest.split(",")[0].strip()
    if left is None or right is None or left.scattered or right.scattered or predicate not in (*_LESS, *_GREATER):
        return None
    distance = left.numbers - right.numbers
    columns = _columns(kernel, loop, mask)
    ctas = _rows(kernel, loop, mask, columns)
    if columns is None or not ctas or distance.ndim != 2 or min(distance.shape) < 2:
        return None
    along, across = (int(np.diff(distance, axis=axis).flat[0]) for axis in (columns, 1 - columns))
    if along * across >= 0:
        return None  # an index into a matrix, and no distance of its row from its column
    return _Side(mask, ctas, distance.shape[1 - columns], behind=(along > 0) == (predicate in _LESS))


def _columns(kernel: Kernel, loop: Operation, mask: Operation) -> int | None:
    """The dimension along which the indices lie that follow the iteration; None without one."""
    axes = {axis for op, axis in _vectors(kernel, mask) if _is_iterated(kernel, loop, op)}
    return axes.pop() if len(axes) == 1 else None


def _rows(kernel: Kernel, loop: Operation, mask: Operation, columns: int | None) -> frozenset[int]:
    """What says which indices the CTA has along the other dimension: where it is in the grid, or an outer loop."""
    makers = [
        source
        for op, axis in _vectors(kernel, mask)
        if axis != columns and not _is_iterated(kernel, loop, op)
        for source in kernel.values.sources(op, 0, until=READS)
    ]
    return frozenset(op.line for op in makers if op.name in ("tt.get_program_id", *LOOPS))


def _vectors(kernel: Kernel, mask: Operation) -> list[tuple[Operation, int]]:
    """The rows and columns of indices of which a comparison is made, each with the dimension along which it lies."""
    sources = {op.line: op for place in (0, 1) for op in kernel.values.sources(mask, place)}
    found = [(op, re.search(r"axis = ([01])", op.rest)) for op in sources.values() if op.name == "tt.expand_dims"]
    return [(op, 1 - int(axis[1])) for op, axis in found if axis is not None]


def _is_iterated(kernel: Kernel, loop: Operation, vector: Operation) -> bool:
    value = kernel.values.operand(vector, 0)
    return value is not None and loop.line in value.iterations


def _is_bounded(kernel: Kernel, loop: Operation, side: _Side) -> bool:
    """Whether the loop's bound on that side follows the CTA's rows, or they are all that there is."""
    bound = {op.line for op in kernel.values.sources(loop, _UPPER if side.behind else _LOWER)}
    first, last = kernel.values.operand(loop, _LOWER), kernel.values.operand(loop, _UPPER)
    known = not any(one is None or one.arguments or one.program or one.loaded for one in (first, last))
    short = known and first is not None and last is not None and int(last.numbers - first.numbers) <= side.rows
    return short or bool(bound & side.ctas)


RULE = Rule("masked-tiles", "Tiles that a mask removes", check)
