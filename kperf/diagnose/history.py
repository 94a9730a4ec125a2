"""How a script launches a function: for which arguments it was compiled, and what its autotuner chose."""

from dataclasses import dataclass, field
from typing import Any

import torch

from kperf.compat.triton import (
    CompiledKernel,
    LaunchCall,
    Tuning,
    argument_names,
    current_call,
    python_function,
    specialisation_of,
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

    tuned: whether its configurations were tried too, which are compilations as well.
    """

    compilations: dict[str, Compilation] = field(default_factory=dict)
    tunings: list[Tuning] = field(default_factory=list)

    @property
    def launches(self) -> int:
        """Of all compilations."""
        return sum(one.launches for one in self.compilations.values())

    @property
    def tuned_names(self) -> set[str]:
        """What the autotuner chooses."""
        return {name for tuning in self.tunings for config in tuning.configs for name in config}


class Histories:
    """Of all functions that a script launches."""

    def __init__(self) -> None:
        """Nothing was launched yet."""
        self._of: dict[Any, History] = {}
        self._first: dict[Any, str] = {}
        self._numbers: dict[str, dict[str, int]] = {}
        self._lengths: dict[str, dict[str, int]] = {}

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

    def note_arguments(self, kernel: CompiledKernel, call: LaunchCall) -> None:
        """Those of a kernel's first launch, also where a tuner tries it."""
        if kernel.hash not in self._numbers:
            self._numbers[kernel.hash] = numbers_of(kernel, call)
            self._lengths[kernel.hash] = lengths_of(kernel, call)

    def numbers(self, kernel: CompiledKernel) -> dict[str, int]:
        """All integers that a kernel's first launch is given, by the argument's name."""
        return self._numbers.get(kernel.hash, {})

    def lengths(self, kernel: CompiledKernel) -> dict[str, int]:
        """How many elements the tensors have that a kernel's first launch is given, by the argument's name."""
        return self._lengths.get(kernel.hash, {})

    def of(self, kernel: CompiledKernel, *, tuned: bool = False) -> History:
        """That of a kernel's function; empty for all of its compilations but the first, unless a tuner tried them."""
        key = python_function(kernel)
        if key not in self._of:
            return History()
        first = self._first.setdefault(key, kernel.hash)
        return self._of[key] if tuned or first == kernel.hash else History()


def numbers_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """The integers that a launch gives a kernel's function, by name; none where it leaves some arguments out."""
    named = _named(kernel, call)
    return {name: value for name, value in named if isinstance(value, int) and not isinstance(value, bool)}


def lengths_of(kernel: CompiledKernel, call: LaunchCall) -> dict[str, int]:
    """Elements of the tensors that a launch gives a kernel's function, by name; none where it leaves arguments out."""
    return {name: value.numel() for name, value in _named(kernel, call) if isinstance(value, torch.Tensor)}


def _named(kernel: CompiledKernel, call: LaunchCall) -> list[tuple[str, Any]]:
    names = argument_names(kernel)
    return list(zip(names, call.arguments, strict=True)) if len(names) == len(call.arguments) else []
