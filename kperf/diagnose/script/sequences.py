"""Launches of a function one after another: of other parts of memory, of next slices, of what the last one stored."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, TypeVar

import torch
import triton.language as tl

from kperf.diagnose.script.places import Place, end_of, near_tensors, place_of


@dataclass(frozen=True)
class Series:
    """Launches of a function with one grid, one after another, that differ in the part of memory that they are given.

    Between two of them no other kernel of Triton is launched, and torch writes none of their tensors; what torch reads
    is not known. moved: tensors of which each is given another view, and numbers and constants that differ.
    """

    launches: int = 1
    moved: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Slices:
    """Launches of a function with one grid, one after another, of which each is given the next slice of some tensors.

    Between two of them no other kernel of Triton is launched, and torch writes none of their tensors; what torch reads
    is not known. steps: by how much each tensor and whole number moves on from launch to launch, in bytes and in ones;
    0 of what stays. All else is equal. apart: tensors whose slices have no element in common. near: pairs of arguments
    that may have bytes in common, but for the same slice that is given twice.
    """

    grid: tuple[int, int, int]
    launches: int = 1
    steps: Mapping[str, int] = field(default_factory=dict)
    apart: frozenset[str] = frozenset()
    near: frozenset[frozenset[str]] = frozenset()


@dataclass(frozen=True)
class Chain:
    """Launches of a compiled kernel with one grid, one after another, that may load what the last one stored.

    Between two of them no other kernel of Triton is launched, and torch writes none of the tensors that are in `links`
    or `kept`; what torch reads is not known. links: (loaded, stored), arguments of which each launch is given as the
    first the tensor that the last one was given as the second, from its beginning. kept: tensors that are the same in
    all launches. near: pairs of arguments that had the same memory in a launch. changed: tensors, numbers and constants
    that differ between launches.
    """

    launches: int = 1
    links: frozenset[tuple[str, str]] = frozenset()
    kept: frozenset[str] = frozenset()
    near: frozenset[frozenset[str]] = frozenset()
    changed: frozenset[str] = frozenset()

    @property
    def passes_on(self) -> bool:
        """Whether a tensor is handed from one argument to another, and not only to the same one."""
        return any(loaded != stored for loaded, stored in self.links)

    def is_continued_by(self, links: Set[tuple[str, str]]) -> bool:
        """Whether these links of the next launch are among its own; a benchmark that begins again has others."""
        both = self.links & links
        return bool(both) and (not self.passes_on or replace(self, links=both).passes_on)


_Launches = TypeVar("_Launches", Series, Slices, Chain)


@dataclass(frozen=True)
class Launch:
    """A launch, by its tensors' places and its other arguments, and the series, slices and chain that end with it.

    others: numbers. words: what is neither a tensor nor a number; None where it may hold a tensor, as a descriptor.
    parts: what the launches of that series are given. kernel: the hash of the compiled one. is_first: of that one.
    tensors: where all tensors were at that first launch.
    """

    function: Any
    kernel: str
    is_first: bool
    grid: tuple[int, int, int]
    places: dict[str, Place]
    others: dict[str, Any]
    words: dict[str, Any] | None
    series: Series
    parts: set[tuple[Any, ...]]
    slices: Slices
    chain: Chain
    tensors: list[Place]


def longer(one: _Launches | None, other: _Launches) -> _Launches:
    """The one of more launches; of as many, the first."""
    return other if one is None or other.launches > one.launches else one


def next_series(
    last: Launch | None, places: dict[str, Place], others: dict[str, Any]
) -> tuple[Series, set[tuple[Any, ...]]]:
    """The last launch's series with this one, and the parts that their launches were given.

    A series of its own where there is no last launch with this grid, or a benchmark begins again.
    """
    part = (*(place.first for place in places.values()), *others.values())
    if last is None or not _is_next(last.places, places):
        return Series(), {part}
    moved = {name for name, place in places.items() if place.first != last.places[name].first}
    moved |= {name for name, value in others.items() if value != last.others.get(name)}
    if not moved or part in last.parts:
        return Series(), {part}
    last.parts.add(part)
    return Series(last.series.launches + 1, last.series.moved | moved), last.parts


def _is_next(last: dict[str, Place], places: dict[str, Place]) -> bool:
    """Whether each of a launch's tensors has a memory of its own, as in the last one; torch wrote none since."""
    apart = not any(one.is_near(other) for one, other in combinations(places.values(), 2))
    return (
        apart
        and last.keys() == places.keys()
        and all(place.is_unwritten_since(last[name]) for name, place in places.items())
    )


def words_of(named: Sequence[tuple[str, Any]]) -> dict[str, Any] | None:
    """What is neither a tensor nor a number; None where it is not plain, as a descriptor or a tuple."""
    words = {name: value for name, value in named if not isinstance(value, torch.Tensor | int | float)}
    plain = all(value is None or isinstance(value, str | tl.dtype) or callable(value) for value in words.values())
    return words if plain else None


def next_slices(last: Launch, values: Mapping[str, Any], places: dict[str, Place], others: dict[str, Any]) -> Slices:
    """The last launch's slices with this one; new ones of the two where the step is another."""
    if last.places.keys() != places.keys() or last.others.keys() != others.keys():
        return Slices(last.grid)
    whole = {name for name, value in others.items() if type(value) is int}
    same = all(value == last.others[name] for name, value in others.items() if name not in whole)
    if not same or not all(place.is_unwritten_since(last.places[name]) for name, place in places.items()):
        return Slices(last.grid)
    steps = {name: place.first - last.places[name].first for name, place in places.items()}
    steps |= {name: others[name] - last.others[name] for name in whole}
    if not any(steps.values()):
        return Slices(last.grid)
    launches = last.slices.launches + 1 if steps == last.slices.steps else 2
    apart = frozenset(name for name in places if _are_apart(values[name], steps[name], launches))
    swept = {name: _swept(values[name], steps[name], launches) for name in places}
    near = frozenset(
        frozenset((one, two))
        for one, two in near_tensors(places)
        if max(swept[one][0], swept[two][0]) < min(swept[one][1], swept[two][1])
        and not ({one, two} <= apart and steps[one] == steps[two] and places[one].is_all_of(places[two]))
    )
    return Slices(last.grid, launches, steps, apart, near)


def _swept(tensor: torch.Tensor, step: int, launches: int) -> tuple[int, int]:
    """The byte of its memory where the first of so many tensors begins, of which this is the last, and the last end."""
    back = step * (launches - 1)
    return place_of(tensor).first - max(back, 0), end_of(tensor) - min(back, 0)


def _are_apart(tensor: torch.Tensor, step: int, launches: int) -> bool:
    """Whether so many tensors like this one, each `step` bytes behind the last, have no element in common.

    They have none if each stride, the step among them, is as long as what the shorter ones reach.
    """
    size = tensor.element_size()
    axes = [(stride * size, length) for length, stride in zip(tensor.shape, tensor.stride(), strict=True)]
    reached = size
    for stride, length in sorted([*axes, (abs(step), launches)]):
        if length > 1 and stride < reached:
            return False
        reached += stride * (length - 1)
    return True


def chained(last: Launch, places: dict[str, Place], others: dict[str, Any]) -> Chain:
    """The last launch's chain with this one; a new chain of the two where they have no link of the last one's."""
    if last.places.keys() != places.keys():
        return Chain()
    links = {(name, one) for name, place in places.items() for one, was in last.places.items() if place.is_same_as(was)}
    kept = {name for name, stored in links if name == stored}
    changed = places.keys() - kept | {name for name, value in others.items() if value != last.others.get(name)}
    chain = last.chain if last.chain.is_continued_by(links) else Chain(1, frozenset(links), frozenset(kept))
    near = {frozenset(pair) for one in (last.places, places) for pair in near_tensors(one)}
    return Chain(chain.launches + 1, chain.links & links, chain.kept & kept, chain.near | near, chain.changed | changed)
