"""How a script launches a function: for which arguments it was compiled, and what its autotuner chose."""

import weakref
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch

from kperf.compat.torch import writes_of
from kperf.compat.triton import (
    CompiledKernel,
    LaunchCall,
    Tuning,
    argument_names,
    current_call,
    python_function,
    specialisation_of,
)

_MULTIPLE = 16
"""Triton specialises a kernel for arguments that are multiples of it."""


@dataclass
class Compilation:
    """One compilation: what the compiler assumed of each argument, in words, and the values of its first launch."""

    specialisation: dict[str, str]
    values: dict[str, int]
    launches: int = 0


@dataclass(frozen=True)
class Series:
    """Launches of a function with one grid, one after another, that differ in the part of memory that they are given.

    Between two of them no other kernel of Triton is launched, and torch writes none of their tensors; what torch reads
    is not known. moved: tensors of which each is given another view, and numbers and constants that differ.
    """

    launches: int = 1
    moved: frozenset[str] = frozenset()


@dataclass
class History:
    """The compilations of a function in the order of their first launches, and its autotuner's choices, if it has one.

    series: the longest one whose launches are given other parts of a tensor; None without one.
    """

    compilations: dict[str, Compilation] = field(default_factory=dict)
    tunings: list[Tuning] = field(default_factory=list)
    series: Series | None = None

    @property
    def launches(self) -> int:
        """Of all compilations."""
        return sum(one.launches for one in self.compilations.values())

    @property
    def tuned_names(self) -> set[str]:
        """What the autotuner chooses."""
        return {name for tuning in self.tunings for config in tuning.configs for name in config}


@dataclass(frozen=True)
class _Place:
    """Where a tensor's numbers are, without a GPU too: its memory, which is not kept, and the byte where it begins.

    writes: of torch to this memory; None where torch does not count them.
    """

    memory: "weakref.ref[torch.UntypedStorage]"
    first: int
    writes: int | None

    def is_near(self, other: "_Place") -> bool:
        """Whether both are in the same memory."""
        return (memory := self.memory()) is not None and memory is other.memory()

    def is_unwritten_since(self, other: "_Place") -> bool:
        """Whether both are in the same memory, which torch has not written between."""
        return self.is_near(other) and self.writes is not None and self.writes == other.writes


@dataclass(frozen=True)
class _Launch:
    """A launch, by the places of its tensors and its other arguments, and the series that ends with it.

    parts: what the launches of that series are given.
    """

    function: Any
    grid: tuple[int, int, int]
    places: dict[str, _Place]
    others: dict[str, Any]
    series: Series
    parts: set[tuple[Any, ...]]


class Histories:
    """Of all functions that a script launches."""

    def __init__(self) -> None:
        """Nothing was launched yet."""
        self._of: dict[Any, History] = {}
        self._last: _Launch | None = None
        self._first: dict[Any, str] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._lengths: dict[str, dict[str, int]] = {}
        self._multiples: dict[str, frozenset[str]] = {}

    def note(self, kernel: CompiledKernel, call: LaunchCall) -> None:
        """A launch, inside of `noted_calls`."""
        key = python_function(kernel)
        history = self._of.setdefault(key, History())
        if (known := history.compilations.get(kernel.hash)) is None:
            known = history.compilations[kernel.hash] = Compilation(specialisation_of(kernel), numbers_of(kernel, call))
            now = current_call()
            if now is not None and now.tuning is not None:
                history.tunings.append(now.tuning)
        known.launches += 1
        series = self._series(kernel, call)
        if series.moved and (history.series is None or series.launches > history.series.launches):
            history.series = series

    def _series(self, kernel: CompiledKernel, call: LaunchCall) -> Series:
        """The series that ends with this launch: the last one's, or its own, as where a benchmark begins again."""
        last, function, named = self._last, python_function(kernel), _named(kernel, call)
        places = {name: _place_of(value) for name, value in named if isinstance(value, torch.Tensor)}
        others = {name: value for name, value in named if isinstance(value, int | float)}
        part = (*(place.first for place in places.values()), *others.values())
        series, parts = Series(), {part}
        if last is not None and (last.function, last.grid) == (function, call.grid) and _is_next(last.places, places):
            moved = {name for name, place in places.items() if place.first != last.places[name].first}
            moved |= {name for name, value in others.items() if value != last.others.get(name)}
            if moved and part not in last.parts:
                series, parts = Series(last.series.launches + 1, last.series.moved | moved), last.parts
                parts.add(part)
        self._last = _Launch(function, call.grid, places, others, series, parts)
        return series

    def note_arguments(self, kernel: CompiledKernel, call: LaunchCall) -> None:
        """Those of a kernel's first launch, also where a tuner tries it, and which are multiples of 16 in each."""
        multiples = multiples_of(kernel, call)
        self._multiples[kernel.hash] = self._multiples.get(kernel.hash, multiples) & multiples
        if kernel.hash not in self._numbers:
            self._numbers[kernel.hash] = numbers_of(kernel, call)
            self._lengths[kernel.hash] = lengths_of(kernel, call)

    def numbers(self, kernel: CompiledKernel) -> dict[str, int]:
        """All integers that a kernel's first launch is given, by the argument's name."""
        return self._numbers.get(kernel.hash, {})

    def lengths(self, kernel: CompiledKernel) -> dict[str, int]:
        """How many elements the tensors have that a kernel's first launch is given, by the argument's name."""
        return self._lengths.get(kernel.hash, {})

    def multiples(self, kernel: CompiledKernel) -> frozenset[str]:
        """Arguments that are multiples of 16, or tensors that begin at multiples of 16 bytes, in all launches."""
        return self._multiples.get(kernel.hash, frozenset())

    def of(self, kernel: CompiledKernel, *, tuned: bool = False) -> History:
        """That of a kernel's function; empty for all of its compilations but the first, unless a tuner tried them."""
        key = python_function(kernel)
        if key not in self._of:
            return History()
        first = self._first.setdefault(key, kernel.hash)
        return self._of[key] if tuned or first == kernel.hash else History()


def _place_of(tensor: torch.Tensor) -> _Place:
    first = int(tensor.storage_offset()) * tensor.element_size()
    return _Place(weakref.ref(tensor.untyped_storage()), first, writes_of(tensor))


def _is_next(last: dict[str, _Place], places: dict[str, _Place]) -> bool:
    """Whether each of a launch's tensors has a memory of its own, as in the last one; torch wrote none since."""
    apart = not any(one.is_near(other) for one, other in combinations(places.values(), 2))
    return (
        apart
        and last.keys() == places.keys()
        and all(place.is_unwritten_since(last[name]) for name, place in places.items())
    )


def numbers_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """The integers that a launch gives a kernel's function, by name; none where it leaves some arguments out."""
    named = _named(kernel, call)
    return {name: value for name, value in named if isinstance(value, int) and not isinstance(value, bool)}


def lengths_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """Elements of the tensors that a launch gives a kernel's function, by name; none where it leaves arguments out."""
    return {name: value.numel() for name, value in _named(kernel, call) if isinstance(value, torch.Tensor)}


def multiples_of(kernel: CompiledKernel, call: LaunchCall) -> frozenset[str]:
    """Integers that are multiples of 16 in a launch, and tensors that begin at multiples of 16 bytes, by name."""
    tensors = {name for name, value in _named(kernel, call) if _is_aligned(value)}
    return frozenset(tensors | {name for name, number in numbers_of(kernel, call).items() if number % _MULTIPLE == 0})


def _is_aligned(value: Any) -> bool:
    """Whether it is a tensor that begins where memory does, which torch aligns, or a multiple of 16 bytes behind."""
    return isinstance(value, torch.Tensor) and _place_of(value).first % _MULTIPLE == 0


def _named(kernel: CompiledKernel, call: LaunchCall) -> list[tuple[str, Any]]:
    names = argument_names(kernel)
    return list(zip(names, call.arguments, strict=True)) if len(names) == len(call.arguments) else []
