"""How a script launches a function: for which arguments it was compiled, and what its autotuner chose."""

from dataclasses import dataclass, field
from typing import Any

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

    def note(self, kernel: CompiledKernel, call: LaunchCall) -> None:
        """A launch, inside of `noted_calls`."""
        key = python_function(kernel)
        history = self._of.setdefault(key, History())
        if (known := history.compilations.get(kernel.hash)) is None:
            named = zip(argument_names(kernel), call.arguments, strict=False)
            values = {name: value for name, value in named if isinstance(value, int) and not isinstance(value, bool)}
            known = history.compilations[kernel.hash] = Compilation(specialisation_of(kernel), values)
            now = current_call()
            if now is not None and now.tuning is not None:
                history.tunings.append(now.tuning)
        known.launches += 1

    def of(self, kernel: CompiledKernel, *, tuned: bool = False) -> History:
        """That of a kernel's function; empty for all of its compilations but the first, unless a tuner tried them."""
        key = python_function(kernel)
        if key not in self._of:
            return History()
        first = self._first.setdefault(key, kernel.hash)
        return self._of[key] if tuned or first == kernel.hash else History()
