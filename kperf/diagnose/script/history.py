"""How a script launches a function: for which arguments it was compiled, and what its autotuner chose."""

from dataclasses import dataclass, field
from typing import Any

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import LaunchCall
from kperf.compat.triton.sources import python_function, specialisation_of
from kperf.compat.triton.tuning import Tuning, current_call
from kperf.diagnose.script.arguments import (
    aliases_of,
    lengths_of,
    multiples_of,
    named_arguments,
    numbers_of,
    tensors_of,
)
from kperf.diagnose.script.operators import Operators, Pass
from kperf.diagnose.script.places import Place, all_tensors, pairs, place_of
from kperf.diagnose.script.sequences import (
    Chain,
    Launch,
    Series,
    Slices,
    chained,
    longer,
    next_series,
    next_slices,
    words_of,
)


@dataclass
class Compilation:
    """One compilation: what the compiler assumed of each argument, in words, and the values of its first launch."""

    specialisation: dict[str, str]
    values: dict[str, int]
    launches: int = 0


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


class Histories:
    """Of all functions that a script launches."""

    def __init__(self) -> None:
        """Nothing was launched yet."""
        self.operators = Operators()
        self._of: dict[Any, History] = {}
        self._last: Launch | None = None
        self._handovers: dict[str, tuple[Handover, dict[str, Place]]] = {}
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
        self.operators.note_launch((kernel.hash, key), tensors_of(kernel, call))
        before, last = self._last, self._launch(kernel, call, is_first=known.launches == 1)
        self._last = last
        self._hand_over(before, last, kernel, call)
        if last.series.moved:
            history.series = longer(history.series, last.series)
        if last.slices.steps:
            history.slices = longer(history.slices, last.slices)
        if last.chain.passes_on and next(iter(history.compilations)) == kernel.hash:
            history.chain = longer(history.chain, last.chain)

    def _hand_over(self, before: Launch | None, last: Launch, kernel: CompiledKernel, call: LaunchCall) -> None:
        """What the launch before hands to the last one; which tensors of earlier handovers the last one is given."""
        given = {id(place.memory()) for place in last.places.values()}
        for first, (handover, places) in self._handovers.items():
            if kernel.hash not in (first, handover.kernel.hash):
                handover.given.update(name for name, place in places.items() if id(place.memory()) in given)
        if before is None or not before.is_first:
            return
        near = pairs(before.places, last.places, Place.is_near)
        links = pairs(before.places, last.places, Place.is_all_of)
        numbers, lengths = numbers_of(kernel, call), lengths_of(kernel, call)
        if links:
            is_again = last.kernel == before.kernel
            made = {name for name, place in last.places.items() if not place.is_among(before.tensors)}
            handover = Handover(kernel, call.grid, numbers, lengths, links, near, is_again, frozenset(made))
            self._handovers[before.kernel] = handover, before.places

    def _launch(self, kernel: CompiledKernel, call: LaunchCall, *, is_first: bool) -> Launch:
        """This launch, with the series that ends with it: the last one's, or its own as where a benchmark begins again.

        So do the slices and the chain.
        """
        last, function, named = self._last, python_function(kernel), named_arguments(kernel, call)
        places = {name: place_of(tensor) for name, tensor in tensors_of(kernel, call).items()}
        others = {name: value for name, value in named if isinstance(value, int | float)}
        alike = last if last is not None and (last.function, last.grid) == (function, call.grid) else None
        series, parts = next_series(alike, places, others)
        words, slices, chain = words_of(named), Slices(call.grid), Chain()
        if alike is not None and words is not None and words == alike.words:
            slices = next_slices(alike, dict(named), places, others)
        if last is not None and (last.kernel, last.grid) == (kernel.hash, call.grid):
            chain = chained(last, places, others)
        tensors = all_tensors() if is_first else []
        return Launch(
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
