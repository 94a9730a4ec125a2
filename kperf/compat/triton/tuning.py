"""Calls of JIT functions, and what autotuners choose for them."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.autotuner import Autotuner, Heuristics
from triton.runtime.jit import JITFunction


@dataclass(frozen=True)
class Tuning:
    """What an autotuner chose for a call: constexprs and options by name, of each configuration and of the best.

    milliseconds: of each configuration, in their order, where the autotuner kept them; infinite where one failed. Empty
    where it measured nothing: it has one configuration, or its choice was read from a file.
    """

    configs: tuple[dict[str, Any], ...]
    best: dict[str, Any]
    milliseconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class JitCall:
    """A call of a JIT function.

    grid: as it was given, a tuple or a function. tuning: of the autotuner that calls it. heuristics: constexprs that
    are computed from the other arguments, by name.
    """

    grid: Any
    tuning: Tuning | None = None
    heuristics: Mapping[str, Callable[[Mapping[str, Any]], Any]] = field(default_factory=dict)

    def grid_of(self, bound: Mapping[str, Any]) -> tuple[int, int, int]:
        """The grid for these arguments, where it is a function."""
        x, y, z = (*map(int, self.grid(bound)), 1, 1)[:3]
        return x, y, z


_calls = threading.local()


def current_call() -> JitCall | None:
    """The call of a JIT function that this thread is in, within `noted_calls`; None of a compiled kernel's."""
    grids, around = getattr(_calls, "grids", []), getattr(_calls, "around", [])
    if not grids:
        return None
    tuners = [one for one in around if isinstance(one, Autotuner)]
    values = {name: value for one in around if isinstance(one, Heuristics) for name, value in one.values.items()}
    return JitCall(grids[-1], _tuning_of(tuners[-1]) if tuners else None, values)


def _tuning_of(tuner: Any) -> Tuning:
    timings = getattr(tuner, "configs_timings", {}) if len(tuner.configs) > 1 else {}
    configs = tuple(timings) or tuple(tuner.configs)
    return Tuning(
        tuple(dict(one.all_kwargs()) for one in configs),
        dict(tuner.best_config.all_kwargs()),
        tuple(float(times[0] if isinstance(times, list | tuple) else times) for times in timings.values()),
    )


@contextmanager
def noted_calls() -> Iterator[None]:
    """Within it, `current_call` knows the calls of JIT functions, in any thread."""
    originals = {owner: owner.run for owner in (JITFunction, Autotuner, Heuristics)}

    def noted(owner: Any, about: Callable[..., Any], kept: str) -> Callable[..., Any]:
        def run(called: Any, *arguments: Any, **options: Any) -> Any:
            stack = _calls.__dict__.setdefault(kept, [])
            stack.append(about(called, options))
            try:
                return originals[owner](called, *arguments, **options)
            finally:
                stack.pop()

        return run

    try:
        JITFunction.run = noted(JITFunction, lambda _, options: options["grid"], "grids")
        for owner in (Autotuner, Heuristics):
            owner.run = noted(owner, lambda called, _: called, "around")
        yield
    finally:
        for owner, original in originals.items():
            owner.run = original


@contextmanager
def own_tuning() -> Iterator[None]:
    """Within it, autotuners know nothing of what they chose before; afterwards, nothing of what they chose here.

    What they keep on disk (`cache_results`) is neither read nor written.
    """
    original, on_disk = Autotuner.run, Autotuner.check_disk_cache
    chosen: dict[int, dict[Any, Any]] = {}

    def run(tuner: Any, *arguments: Any, **options: Any) -> Any:
        before, tuner.cache = tuner.cache, chosen.setdefault(id(tuner), {})
        try:
            return original(tuner, *arguments, **options)
        finally:
            tuner.cache = before

    def tune(_tuner: Any, _key: Any, _configs: Any, bench: Callable[[], object]) -> bool:
        bench()
        return False

    Autotuner.run, Autotuner.check_disk_cache = run, tune
    try:
        yield
    finally:
        Autotuner.run, Autotuner.check_disk_cache = original, on_disk


@contextmanager
def noted_trials() -> Iterator[list[object]]:
    """Within it, the list has the autotuners that try a configuration just then, Triton's and those derived from it."""
    original = Autotuner._bench
    trying: list[object] = []

    def bench(tuner: Any, *arguments: Any, **options: Any) -> Any:
        trying.append(tuner)
        try:
            return original(tuner, *arguments, **options)
        finally:
            trying.pop()

    Autotuner._bench = bench
    try:
        yield trying
    finally:
        Autotuner._bench = original
