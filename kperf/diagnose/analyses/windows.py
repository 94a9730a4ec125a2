"""Reductions over sliding windows, whose neighbours have most of their elements in common.

A reduction has levels: iterations of loops, axes of a tile, and terms that stand one after another. Along a level the
window slides if what one output reduces is, some elements further, what another output reduces: an output of the same
tile, of another CTA, or of another iteration of a loop around. Labels say what data a term is computed of.
"""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.reductions import Reduction, Term, reductions
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import LOADS, loops_around, mask_place
from kperf.ir.labels import Labels
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value, Values, joined

_LEAST = 8
"""Elements of a window: fewer are a stencil, which its loads hardly slow down."""
_SHARED = 0.5
"""Of a tile's elements that are another output's too, a hop further."""
_SAME = 0.9
"""Of these, the terms that are the same: masks may differ at the ends of a tensor."""
_LONGEST_HOP = 64
"""Elements from a window to the next one of a tile."""
_FARTHEST = 64
"""CTAs, or iterations of a loop around, from a window to one that has elements in common with it."""

Mover = int | str
"""What leads from an output to others: the line of a loop around the reduction, or an axis of the grid."""
_Numbers = NDArray[np.int64]


@dataclass(frozen=True)
class Level:
    """count: elements of a window along it. hop: from one window to the next; 0 where the window does not slide.

    step: bytes from an element to the next one. shared: of a tile's elements those that are also another output's of
    the tile, a hop further. mover: what leads to the next output that shares elements, where no tile has both.
    """

    count: int
    step: int = 0
    hop: int = 0
    shared: float = 0.0
    mover: Mover | None = None


@dataclass(frozen=True)
class Window:
    """What each output reduces: of each element a term, which depends on nothing but data at that element's place.

    kind: of the reduction, such as `sum`. loads: for an element, the largest first. computing: what is done for each
    element; joining: what joins them. outputs: of a CTA, each time that it begins windows; times: how often it does.
    iterations: of loops, for the elements of a window.
    """

    kind: str
    loads: tuple[Operation, ...]
    computing: tuple[Operation, ...]
    joining: tuple[Operation, ...]
    outputs: int
    times: int
    iterations: int
    levels: tuple[Level, ...]

    @property
    def sliding(self) -> list[Level]:
        """The levels along which it slides."""
        return [level for level in self.levels if level.hop]

    @property
    def length(self) -> int:
        """Elements along the levels along which it slides."""
        return math.prod(level.count for level in self.sliding)


def windows(kernel: Kernel) -> Iterator[Window]:
    """Of a kernel by its TTIR: those that slide along a level at least."""
    for reduction in reductions(kernel):
        alike: dict[object, list[Term]] = defaultdict(list)
        for term in sorted(reduction.terms, key=lambda one: one.maker.line):
            alike[frame_of(term.maker), tuple(loop.line for loop in term.loops), term.axes].append(term)
        for terms in alike.values():
            if not terms[0].loops and len(terms) * terms[0].length < _LEAST:
                continue
            if (window := _Sliding(kernel, reduction, terms).window) is not None:
                yield window


class _Iteration(Values):
    """As the kernel's `launched_values`, in one of its CTAs, and in iterations of loops by their lines."""

    def __init__(self, kernel: Kernel, programs: Mapping[str, int], iterations: Mapping[int, int]) -> None:
        self.__dict__ |= vars(kernel.launched_values)
        self._found = {}
        self._kernel, self._programs, self._iterations = kernel, dict(programs), iterations

    def _compute(self, key: tuple[int, str], place: int) -> Value | None:
        around = self._carried.get(key)
        if around is None or around.loop.line not in self._iterations:
            return super()._compute(key, place)
        count = self._iterations[around.loop.line]
        if around.later is None:
            begin, step = (self.operand(around.loop, BOUNDS[bound]) for bound in (0, 2))
            if begin is None or step is None:
                return None
            return joined(begin.numbers + count * step.numbers, [begin, step])
        others = {line: number for line, number in self._iterations.items() if line != around.loop.line}
        first = _Iteration(self._kernel, self._programs, others)
        begin, later = first.of(*around.first), first.of(*around.later)
        if begin is None or later is None or begin.loaded or later.loaded:
            return None
        return joined(begin.numbers + count * (later.numbers - begin.numbers), [begin, later])


class _Labels(_Iteration, Labels):
    """Likewise, of labels."""


@dataclass(frozen=True)
class _At:
    """index: along each level. moved: by how many steps of a mover."""

    index: tuple[int, ...]
    mover: Mover | None = None
    moved: int = 0


class _Sliding:
    """Terms that are alike, and where they come from at any place of the levels: loops, axes, one after another."""

    def __init__(self, kernel: Kernel, reduction: Reduction, terms: list[Term]) -> None:
        self._kernel, self._reduction, self._terms = kernel, reduction, terms
        self._loops, self._axes = terms[0].loops, terms[0].axes
        self._around = [loop for loop in loops_around(terms[0].maker) if loop not in self._loops]
        x, y, z = kernel.grid or (1, 1, 1)
        self._programs = {"x": x // 2, "y": y // 2, "z": z // 2}  # a CTA in the middle: no window ends at a border
        counts = ((loop.line, kernel.iterations(loop)) for loop in self._around)
        self._begins = {line: count // 2 for line, count in counts if count is not None}
        self._found: dict[_At, _Labels] = {}

    @cached_property
    def window(self) -> Window | None:
        """None where no level slides."""
        loads = _loads(self._kernel, self._terms[0])
        counts = self._counts if loads else None
        if counts is None or math.prod(counts) < _LEAST:
            return None
        term = self._term(_At((0,) * len(counts)))
        if term is None:
            return None
        window = Window(
            self._reduction.kind,
            tuple(loads),
            tuple({op.line: op for one in self._terms for op in _computing(self._kernel, one)}.values()),
            tuple(self._reduction.joining.values()),
            term.size,
            self._kernel.times(self._loops[0] if self._loops else self._terms[0].maker),
            math.prod(counts[: len(self._loops)]),
            _merged([self._level(place, count) for place, count in enumerate(counts)]),
        )
        return window if window.length >= _LEAST else None

    @cached_property
    def _counts(self) -> list[int] | None:
        """Of the elements along each level; None where the launch does not say one, or loads have another shape."""
        labels, counts = self._labels(_At((0,) * len(self._loops))), []
        for loop in self._loops:
            bounds = [labels.operand(loop, place) for place in BOUNDS]
            numbers = [int(one.numbers) for one in bounds if one is not None and self._is_known(one)]
            if len(numbers) < len(BOUNDS) or numbers[-1] <= 0:
                return None
            counts.append(len(range(*numbers)))
        term, load = self._terms[0], _loads(self._kernel, self._terms[0])[0]
        made, address = labels.of(term.maker.parent, term.name), labels.operand(load, 0)
        if made is None or address is None or made.numbers.shape != address.numbers.shape:
            return None
        return [*counts, *(made.numbers.shape[axis] for axis in self._axes), *self._rows]

    @cached_property
    def _rows(self) -> tuple[int, int]:
        """Rows of terms that stand one after another, and terms of a row; one row, if they are none of equal steps."""
        begin, count = _At((0,) * (len(self._loops) + len(self._axes))), len(self._terms)
        first, *others = (self._address_of(term, begin) for term in self._terms)
        steps = np.array([0, *(_step(first, other) for other in others)])
        ends = np.flatnonzero(np.diff(steps, n=2))
        row = int(ends[0]) + 2 if len(ends) else count
        return (count // row, row) if count % row == 0 else (1, count)

    def _is_known(self, value: Value) -> bool:
        return not value.loaded and value.arguments <= self._kernel.numbers.keys()

    def _level(self, place: int, count: int) -> Level:
        here = [0] * (len(self._loops) + len(self._axes) + 2)

        def at(index: int, mover: Mover | None = None, moved: int = 0) -> _At:
            return _At((*here[:place], index, *here[place + 1 :]), mover, moved)

        first = self._address(at(0))
        indices = range(1, count) if place >= len(here) - 2 or count < 3 else (1, count - 1)
        others = [(index, self._address(at(index))) for index in indices]
        step = _step(first, others[0][1]) if others else 0
        if first is None or not step or any(_step(first, one) != index * step for index, one in others):
            return Level(count)
        hops = (hop for hop in range(1, min(count, _LONGEST_HOP)) if _shared(first, hop * step) >= _SHARED)
        hop = next(hops, 0)
        if hop and all(self._is_shared(at(index + hop), at(index)) for index in {0, count - 1 - hop}):
            return Level(count, step, hop, _shared(first, hop * step))
        for mover, farthest in self._movers():
            apart = _step(first, self._address(at(0, mover, 1)))
            hop, far = (abs(one) // math.gcd(step, apart) for one in (apart, step))
            if not 0 < hop < count or far > farthest:
                continue
            behind, before = (hop, 0) if (step > 0) == (apart > 0) else (0, hop)
            ends = {0, count - 1 - hop}
            if all(self._is_same(at(index + behind), at(index + before, mover, far)) for index in ends):
                return Level(count, step, hop, mover=mover)
        return Level(count)

    def _movers(self) -> Iterator[tuple[Mover, int]]:
        """Each with how many steps away an output may be."""
        for loop in self._around:
            if loop.line in self._begins:
                yield loop.line, min(self._begins[loop.line], _FARTHEST)
        for axis, length in zip("xyz", self._kernel.grid or (), strict=False):
            yield axis, min(length - 1, _FARTHEST)

    def _is_same(self, one: _At, other: _At) -> bool:
        """Whether the terms at two places are made of the same data."""
        left, right = self._term(one), self._term(other)
        return left is not None and right is not None and bool(np.mean(left == right) >= _SAME)

    def _is_shared(self, one: _At, other: _At) -> bool:
        """Likewise, where they are of one address."""
        here, there, left, right = self._address(one), self._address(other), self._term(one), self._term(other)
        if here is None or there is None or left is None or right is None:
            return False
        here, there, left, right = here.ravel(), there.ravel(), left.ravel(), right.ravel()
        order = np.argsort(there)
        found = order[np.clip(np.searchsorted(there[order], here), 0, len(order) - 1)]
        both = there[found] == here
        return bool(both.any() and np.mean(left[both] == right[found][both]) >= _SAME)

    def _one_of(self, at: _At) -> Term:
        return self._terms[at.index[-2] * self._rows[1] + at.index[-1]]

    def _term(self, at: _At) -> _Numbers | None:
        """Labels of the terms of a tile's outputs."""
        term = self._one_of(at)
        return self._of_outputs(self._labels(at).of(term.maker.parent, term.name), at)

    def _address(self, at: _At) -> _Numbers | None:
        """From where a tile's outputs load; None where it depends on data."""
        return self._address_of(self._one_of(at), at)

    def _address_of(self, term: Term, at: _At) -> _Numbers | None:
        loads = _loads(self._kernel, term)
        value = self._labels(at).operand(loads[0], 0) if loads else None
        return None if value is None or value.loaded else self._of_outputs(value, at)

    def _of_outputs(self, value: Value | None, at: _At) -> _Numbers | None:
        of_axis = dict(zip(self._axes, at.index[len(self._loops) :], strict=False))
        if value is None or value.numbers.ndim < len(of_axis):
            return None
        return value.numbers[tuple(of_axis.get(axis, slice(None)) for axis in range(value.numbers.ndim))]

    def _labels(self, at: _At) -> _Labels:
        place = _At(at.index[: len(self._loops)], at.mover, at.moved)
        if place not in self._found:
            programs, iterations = dict(self._programs), dict(self._begins)
            if isinstance(at.mover, str):
                programs[at.mover] += at.moved
            elif at.mover is not None:
                iterations[at.mover] += at.moved
            iterations |= {loop.line: index for loop, index in zip(self._loops, place.index, strict=True)}
            self._found[place] = _Labels(self._kernel, programs, iterations)
        return self._found[place]


def _merged(levels: Sequence[Level]) -> tuple[Level, ...]:
    """With one level for two of which one goes on where the other ends, as a loop over parts of a window."""
    found: list[Level] = []
    for level in sorted(levels, key=lambda one: abs(one.step)):
        last = found[-1] if found else None
        if last is not None and last.hop and level.hop and level.step == last.step * last.count:
            found[-1] = replace(last, count=last.count * level.count)
        else:
            found.append(level)
    return tuple(found)


def _loads(kernel: Kernel, term: Term) -> list[Operation]:
    """Those that a term is computed of, the largest first; none where data decide what is masked."""
    loads = list({op.line: op for op in _computing(kernel, term) if op.name in LOADS}.values())
    masks = [kernel.values.operand(op, mask_place(op)) for op in loads if len(op.operands) > mask_place(op)]
    if any(mask is None or mask.loaded for mask in masks):
        return []
    return sorted(loads, key=lambda op: (-len(loops_around(op)), -_elements(op), op.line))


def _computing(kernel: Kernel, term: Term) -> list[Operation]:
    """A term's operations, from its loads on."""
    made = term.maker
    places = range(len(made.operands)) if made.name not in LOADS else ()
    return [made, *(op for place in places for op in kernel.values.sources(made, place, until=LOADS))]


def _elements(op: Operation) -> int:
    """Of the largest tensor that an operation names; 1 where it names none."""
    return max((tensor.size for tensor in tensor_types(op.rest)), default=1)


def _step(one: _Numbers | None, other: _Numbers | None) -> int:
    """By which all numbers move; 0 where they do not move together, or not at all."""
    if one is None or other is None or one.shape != other.shape:
        return 0
    steps = np.unique(other - one)
    return int(steps[0]) if len(steps) == 1 else 0


def _shared(addresses: _Numbers, moved: int) -> float:
    """Of a tile's addresses those that are also another output's, so many bytes further."""
    return float(np.mean(np.isin(addresses + moved, addresses)))
