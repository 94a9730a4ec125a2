"""Loops in which each row of an MMA's tile takes part in few iterations, and its masks make it 0 in the others."""

import itertools
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.fillings import Filling, fillings
from kperf.diagnose.reading.cta_values import Cta, CtaValues, some_ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import conditions_of
from kperf.diagnose.reading.operations import MMAS, loops_around
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value, joined

_BEGIN, _, _STEP = BOUNDS
_MOST_ITERATIONS = 256
"""Of a loop whose masks are computed."""
_CTAS, _MOST_MASKS = 8, 512
"""CTAs in which masks are computed, and masks that are computed at most: they take some 2 ms each."""
_SHARE = 0.5
"""Of the rows of a tile that take part in an iteration: half as many iterations do the same work."""
_EVEN = 2
"""How many times as many iterations one row may take part in as another: under a triangular mask rows differ more, and
no tile has rows that all take part in the same iterations."""
_ALIKE = 2
"""Rows of a tile that take part in the same iterations, in the mean: rows of a band have no others like them."""


@dataclass(frozen=True)
class MaskedRows:
    """Of an MMA in a loop: the loop's iterations, and in how many of them a row (or column) takes part in the mean.

    share: of the rows, those that take part in an iteration that has any. Both are of some CTAs together.
    """

    mma: Operation
    loop: Operation
    load: Operation
    side: str
    iterations: int
    taking_part: float
    share: float


def masked_rows(kernel: Kernel) -> Iterator[MaskedRows]:
    """Of launches whose integers say the masks, and of masks that are not data."""
    for mma in kernel.named(*MMAS) if kernel.grid is not None else ():
        for place, side in enumerate(("rows", "columns")):
            filled = [one for one in fillings(kernel, mma, place) if one.masks]
            found = _of_side(kernel, mma, filled[-1], place, side) if filled else None
            if found is not None:
                yield found


def _of_side(kernel: Kernel, mma: Operation, filling: Filling, place: int, side: str) -> MaskedRows | None:
    """filling: the last one in the text, which is in the loop where others fill its buffers before it."""
    loops = _moving(kernel, mma, filling)
    counts = [kernel.iterations(loop) or 0 for loop in loops]
    if not loops or not 1 < math.prod(counts) <= _MOST_ITERATIONS:
        return None
    along = dict(zip((loop.line for loop in loops), counts, strict=True))
    ctas = some_ctas(kernel, min(_CTAS, _MOST_MASKS // math.prod(counts)))
    of_ctas = [_rows(kernel, filling, place, along, cta) for cta in ctas]
    known = [one for one in of_ctas if one is not None]
    working = [one[:, one.any(axis=0)] for one in known if one.any()]
    if len(known) < len(of_ctas) or 2 * sum(map(_is_in_groups, working)) <= len(working):
        return None
    rows = sum(np.count_nonzero(one.any(axis=1)) * one.shape[1] for one in working)
    share = sum(np.count_nonzero(one) for one in working) / rows
    if share > _SHARE:
        return None
    taking_part = float(np.mean(np.concatenate([one.sum(axis=0) for one in working])))
    return MaskedRows(mma, loops[-1], filling.load, side, math.prod(counts), taking_part, share)


def _is_in_groups(takes_part: NDArray[np.bool_]) -> bool:
    """Whether the rows of a CTA take part in about as many iterations each, and several of them in the same ones."""
    of_row, kinds = takes_part.sum(axis=0), np.unique(takes_part, axis=1).shape[1]
    return bool(of_row.max() <= _EVEN * of_row.min() and kinds * _ALIKE <= takes_part.shape[1])


def _moving(kernel: Kernel, mma: Operation, filling: Filling) -> list[Operation]:
    """The loops around an MMA on whose iteration rows of a mask depend, innermost first; none where rows are data."""
    values = kernel.launched_values
    made = [one for mask in filling.masks for one, _ in conditions_of(kernel, mask.user, mask.place)]
    conditions = [value for one in made if (value := values.of(one.parent, one.results[0])) is not None]
    rows = [value for value in conditions if value.numbers.size > 1]
    known = all(not value.loaded and value.arguments <= kernel.numbers.keys() for value in rows)
    if len(conditions) < len(made) or not known:
        return []
    lines = frozenset().union(*(value.iterations for value in rows))
    return [loop for loop in loops_around(mma) if loop.line in lines and loop.name == "scf.for"]


def _rows(
    kernel: Kernel, filling: Filling, place: int, counts: Mapping[int, int], cta: Cta
) -> NDArray[np.bool_] | None:
    """Of each iteration, which rows of the first operand or columns of the second one take part: (iteration, row)."""
    first, found = CtaValues(kernel, cta), []
    filling.elements(first, _is_tile)
    for numbers in itertools.product(*map(range, counts.values())):
        values = _Iteration(first, dict(zip(counts, numbers, strict=True)))
        kept = filling.elements(values, _is_tile)
        if kept is None or kept.ndim != 2:
            return None
        found.append(kept.any(axis=1 - place))
    return np.array(found)


def _is_tile(value: Value) -> bool:
    return value.numbers.size > 1


class _Iteration(CtaValues):
    """The numbers of a launch in an iteration of each of some loops, in one of its CTAs.

    What a loop carries beside its induction variable is not known.
    """

    def __init__(self, first: CtaValues, iteration: Mapping[int, int]) -> None:
        """Of the CTA of `first`, whose numbers that no iteration changes are kept.

        iteration: by the lines of loops, from 0.
        """
        self.__dict__ |= vars(first)
        known = ((key, value) for key, value in first._found.items() if value is not None)
        self._found = {key: value for key, value in known if value.iterations.isdisjoint(iteration)}
        self._iteration = iteration

    def _compute(self, key: tuple[int, str], place: int) -> Value | None:
        carried = self._carried.get(key)
        if carried is None or carried.loop.line not in self._iteration:
            return super()._compute(key, place)
        begin, step = self.operand(carried.loop, _BEGIN), self.operand(carried.loop, _STEP)
        if carried.later is not None or begin is None or step is None:
            return None
        return joined(begin.numbers + self._iteration[carried.loop.line] * step.numbers, [begin, step])
