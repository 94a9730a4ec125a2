"""How a script launches a function: for which arguments it was compiled, and what its autotuner chose."""

import gc
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any

import torch
import triton.language as tl

from kperf.compat.torch import writes_of
from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import LaunchCall
from kperf.compat.triton.sources import argument_names, python_function, specialisation_of
from kperf.compat.triton.tuning import Tuning, current_call
from kperf.diagnose.script.operators import Operators, Pass

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


@dataclass
class History:
    """The compilations of a function in the order of their first launches, and its autotuner's choices, if it has one.

    series: the longest one whose launches are given other parts of a tensor; None without one. slices: the most
    launches of one step; None without them. chain: the longest one of its first compilation that hands a tensor on from
    one argument to another; None without one.
    """

    compilations: dict[str, Compilation] = field(default_factory=dict)
    tunings: list[Tuning] = field(default_factory=list)
    series: Series | None = None
    slices: Slices | None = None
    chain: Chain | None = None

    @property
    def launches(self) -> int:
        """Of all compilations."""
        return sum(one.launches for one in self.compilations.values())

    @property
    def tuned_names(self) -> set[str]:
        """What the autotuner chooses."""
        return {name for tuning in self.tunings for config in tuning.configs for name in config}


@dataclass(frozen=True)
class Handover:
    """The launch that follows a kernel's first launch, where it is given tensors of that one.

    kernel, grid, numbers, lengths: of the next launch. links: (argument, the next launch's argument) that are the same
    tensor, which torch does not write between. near: such pairs that are in the same memory. is_again: whether it is a
    launch of the same compiled kernel. made: the next launch's tensors that torch made or wrote after the first launch,
    perhaps of what that one stored. given: arguments whose memory launches of other kernels are given later. What torch
    reads is not known.
    """

    kernel: CompiledKernel
    grid: tuple[int, int, int]
    numbers: dict[str, int]
    lengths: dict[str, int]
    links: frozenset[tuple[str, str]]
    near: frozenset[tuple[str, str]]
    is_again: bool
    made: frozenset[str]
    given: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class _Place:
    """Where a tensor's numbers are, without a GPU too: its memory, which is not kept, and the byte where it begins.

    writes: of torch to this memory; None where torch does not count them. bytes: of its elements.
    """

    memory: "weakref.ref[torch.UntypedStorage]"
    first: int
    writes: int | None
    bytes: int

    def is_near(self, other: "_Place") -> bool:
        """Whether both are in the same memory."""
        return (memory := self.memory()) is not None and memory is other.memory()

    def is_unwritten_since(self, other: "_Place") -> bool:
        """Whether both are in the same memory, which torch has not written between."""
        return self.is_near(other) and self.writes is not None and self.writes == other.writes

    def is_same_as(self, other: "_Place") -> bool:
        """Whether both begin at the same byte of memory, which torch has not written between."""
        return self.first == other.first and self.is_unwritten_since(other)

    def is_among(self, others: "Sequence[_Place]") -> bool:
        """Whether it was one of these, and torch has not written its memory since."""
        return any(self.is_unwritten_since(other) for other in others)

    def is_all_of(self, other: "_Place") -> bool:
        """Whether both are the same bytes of memory, which torch has not written between."""
        return self.bytes == other.bytes and self.is_same_as(other)


@dataclass(frozen=True)
class _Launch:
    """A launch, by its tensors' places and its other arguments, and the series, slices and chain that end with it.

    others: numbers. words: what is neither a tensor nor a number; None where it may hold a tensor, as a descriptor.
    parts: what the launches of that series are given. kernel: the hash of the compiled one. is_first: of that one.
    tensors: where all tensors were at that first launch.
    """

    function: Any
    kernel: str
    is_first: bool
    grid: tuple[int, int, int]
    places: dict[str, _Place]
    others: dict[str, Any]
    words: dict[str, Any] | None
    series: Series
    parts: set[tuple[Any, ...]]
    slices: Slices
    chain: Chain
    tensors: list[_Place]


class Histories:
    """Of all functions that a script launches."""

    def __init__(self) -> None:
        """Nothing was launched yet."""
        self.operators = Operators()
        self._of: dict[Any, History] = {}
        self._last: _Launch | None = None
        self._handovers: dict[str, tuple[Handover, dict[str, _Place]]] = {}
        self._first: dict[Any, str] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._lengths: dict[str, dict[str, int]] = {}
        self._multiples: dict[str, frozenset[str]] = {}
        self._aliases: dict[str, frozenset[frozenset[str]]] = {}

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
        tensors = {name: value for name, value in _named(kernel, call) if isinstance(value, torch.Tensor)}
        self.operators.note_launch((kernel.hash, key), tensors)
        before, last = self._last, self._launch(kernel, call, is_first=known.launches == 1)
        self._last = last
        self._hand_over(before, last, kernel, call)
        if last.series.moved and (history.series is None or last.series.launches > history.series.launches):
            history.series = last.series
        if last.slices.steps and (history.slices is None or last.slices.launches > history.slices.launches):
            history.slices = last.slices
        is_first = next(iter(history.compilations)) == kernel.hash
        if (
            is_first
            and last.chain.passes_on
            and (history.chain is None or last.chain.launches > history.chain.launches)
        ):
            history.chain = last.chain

    def _hand_over(self, before: _Launch | None, last: _Launch, kernel: CompiledKernel, call: LaunchCall) -> None:
        """What the launch before hands to the last one; which tensors of earlier handovers the last one is given."""
        given = {id(place.memory()) for place in last.places.values()}
        for first, (handover, places) in self._handovers.items():
            if kernel.hash not in (first, handover.kernel.hash):
                handover.given.update(name for name, place in places.items() if id(place.memory()) in given)
        if before is None or not before.is_first:
            return
        near = _pairs(before.places, last.places, _Place.is_near)
        links = _pairs(before.places, last.places, _Place.is_all_of)
        numbers, lengths = numbers_of(kernel, call), lengths_of(kernel, call)
        if links:
            is_again = last.kernel == before.kernel
            made = {name for name, place in last.places.items() if not place.is_among(before.tensors)}
            handover = Handover(kernel, call.grid, numbers, lengths, links, near, is_again, frozenset(made))
            self._handovers[before.kernel] = handover, before.places

    def _launch(self, kernel: CompiledKernel, call: LaunchCall, *, is_first: bool) -> _Launch:
        """This launch, with the series that ends with it: the last one's, or its own as where a benchmark begins again.

        So do the slices and the chain.
        """
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
        words, slices = _words(named), Slices(call.grid)
        if last is not None and (last.function, last.grid) == (function, call.grid) and words is not None:
            slices = _next_slices(last, dict(named), places, others) if words == last.words else slices
        chain = Chain()
        if last is not None and (last.kernel, last.grid) == (kernel.hash, call.grid):
            chain = _chained(last, places, others)
        tensors = _all_tensors() if is_first else []
        return _Launch(
            function, kernel.hash, is_first, call.grid, places, others, words, series, parts, slices, chain, tensors
        )

    def note_arguments(self, kernel: CompiledKernel, call: LaunchCall) -> None:
        """Those of a kernel's first launch, also where a tuner tries it, and which are multiples of 16 in each."""
        multiples = multiples_of(kernel, call)
        self._multiples[kernel.hash] = self._multiples.get(kernel.hash, multiples) & multiples
        self._aliases[kernel.hash] = self._aliases.get(kernel.hash, frozenset()) | aliases_of(kernel, call)
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

    def aliases(self, kernel: CompiledKernel) -> frozenset[frozenset[str]]:
        """Pairs of arguments that are tensors with bytes in common in one of a kernel's launches."""
        return self._aliases.get(kernel.hash, frozenset())

    def handover(self, kernel: CompiledKernel) -> Handover | None:
        """What a kernel's first launch hands to the next launch; None if they have no tensor in common."""
        return self._handovers[kernel.hash][0] if kernel.hash in self._handovers else None

    def passes(self, kernel: CompiledKernel, *, tuned: bool = False) -> tuple[Pass, ...]:
        """What torch does with whole tensors of a kernel's first launch, as far as `operators` are noted.

        Of one that a tuner tried, which may be launched in any configuration, of its function's first launch.
        """
        return self.operators.passes(python_function(kernel) if tuned else kernel.hash)

    def of(self, kernel: CompiledKernel, *, tuned: bool = False) -> History:
        """That of a kernel's function; empty for all of its compilations but the first, unless a tuner tried them."""
        key = python_function(kernel)
        if key not in self._of:
            return History()
        first = self._first.setdefault(key, kernel.hash)
        return self._of[key] if tuned or first == kernel.hash else History()


def _place_of(tensor: torch.Tensor) -> _Place:
    first = int(tensor.storage_offset()) * tensor.element_size()
    size = tensor.numel() * tensor.element_size()
    return _Place(weakref.ref(tensor.untyped_storage()), first, writes_of(tensor), size)


def _all_tensors() -> list[_Place]:
    """Where the tensors are that there are now; not those without a memory of their own, as sparse ones."""
    tensors = [one for one in gc.get_objects() if issubclass(type(one), torch.Tensor)]
    found = []
    for tensor in tensors:
        with suppress(NotImplementedError, RuntimeError):
            found.append(_place_of(tensor))
    return found


def _pairs(
    places: dict[str, _Place], others: dict[str, _Place], alike: Callable[[_Place, _Place], bool]
) -> frozenset[tuple[str, str]]:
    return frozenset((name, other) for name in places for other in others if alike(places[name], others[other]))


def _is_next(last: dict[str, _Place], places: dict[str, _Place]) -> bool:
    """Whether each of a launch's tensors has a memory of its own, as in the last one; torch wrote none since."""
    apart = not any(one.is_near(other) for one, other in combinations(places.values(), 2))
    return (
        apart
        and last.keys() == places.keys()
        and all(place.is_unwritten_since(last[name]) for name, place in places.items())
    )


def _words(named: Sequence[tuple[str, Any]]) -> dict[str, Any] | None:
    """What is neither a tensor nor a number; None where it is not plain, as a descriptor or a tuple."""
    words = {name: value for name, value in named if not isinstance(value, torch.Tensor | int | float)}
    plain = all(value is None or isinstance(value, str | tl.dtype) or callable(value) for value in words.values())
    return words if plain else None


def _next_slices(last: _Launch, values: Mapping[str, Any], places: dict[str, _Place], others: dict[str, Any]) -> Slices:
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
        for one, two in _near(places)
        if max(swept[one][0], swept[two][0]) < min(swept[one][1], swept[two][1])
        and not ({one, two} <= apart and steps[one] == steps[two] and places[one].is_all_of(places[two]))
    )
    return Slices(last.grid, launches, steps, apart, near)


def _swept(tensor: torch.Tensor, step: int, launches: int) -> tuple[int, int]:
    """The byte of its memory where the first of so many tensors begins, of which this is the last, and the last end."""
    back = step * (launches - 1)
    return _place_of(tensor).first - max(back, 0), _end_of(tensor) - min(back, 0)


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


def _chained(last: _Launch, places: dict[str, _Place], others: dict[str, Any]) -> Chain:
    """The last launch's chain with this one; a new chain of the two where they have no link of the last one's."""
    if last.places.keys() != places.keys():
        return Chain()
    links = {(name, one) for name, place in places.items() for one, was in last.places.items() if place.is_same_as(was)}
    kept = {name for name, stored in links if name == stored}
    changed = places.keys() - kept | {name for name, value in others.items() if value != last.others.get(name)}
    chain = last.chain if last.chain.is_continued_by(links) else Chain(1, frozenset(links), frozenset(kept))
    near = {frozenset(pair) for one in (last.places, places) for pair in _near(one)}
    return Chain(chain.launches + 1, chain.links & links, chain.kept & kept, chain.near | near, chain.changed | changed)


def _near(places: dict[str, _Place]) -> Iterator[tuple[str, str]]:
    """Tensors of a launch that are in the same memory."""
    return ((one, other) for one, other in combinations(places, 2) if places[one].is_near(places[other]))


def numbers_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """The integers that a launch gives a kernel's function, by name; none where it leaves some arguments out."""
    named = _named(kernel, call)
    return {name: value for name, value in named if isinstance(value, int) and not isinstance(value, bool)}


def lengths_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """Elements of the tensors that a launch gives a kernel's function, by name; none where it leaves arguments out."""
    return {name: value.numel() for name, value in _named(kernel, call) if isinstance(value, torch.Tensor)}


def aliases_of(kernel: CompiledKernel, call: LaunchCall) -> frozenset[frozenset[str]]:
    """Pairs of a launch's arguments that are tensors of the same memory, of which one begins before the other ends."""
    tensors = {name: value for name, value in _named(kernel, call) if isinstance(value, torch.Tensor)}
    places = {name: _place_of(tensor) for name, tensor in tensors.items()}
    return frozenset(
        frozenset((one, two))
        for one, two in _near(places)
        if max(places[one].first, places[two].first) < min(_end_of(tensors[one]), _end_of(tensors[two]))
    )


def _end_of(tensor: torch.Tensor) -> int:
    """The byte of its memory behind a tensor's last element; where it begins if it has none."""
    last = sum((length - 1) * stride for length, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return _place_of(tensor).first + ((last + 1) * tensor.element_size() if tensor.numel() else 0)


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
