"""The passes of a kernel that a script launches again and again: one with a few probes in the place of each launch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.cache import own_cache
from kperf.ir import compile as compiler
from kperf.ir.override import Override, recompile
from kperf.trace.capture.gpu import Span
from kperf.trace.capture.instrumented import recording_of_launch
from kperf.trace.capture.passes import Built, ChosenPass, built, choose_passes, compile_passes, in_sessions, spread
from kperf.trace.instrument.events import Rules
from kperf.trace.instrument.probes import Places, ProbedKernel, Probes, find_probes
from kperf.trace.instrument.session import Recording


@dataclass
class OnePass:
    """A pass, ready to be launched; `buffer` and `spans` once it was."""

    chosen: ChosenPass
    kernel: CompiledKernel
    recording: Recording
    buffer: NDArray[np.uint8] | None = None
    spans: Sequence[Span] = ()


@dataclass
class MultiPass:
    """All passes of a kernel, for launches of one grid."""

    all_probes: Probes
    passes: list[OnePass] = field(default_factory=list)
    original_spans: list[Span] = field(default_factory=list)
    """Of a launch of the original kernel before each of them."""

    @property
    def waiting(self) -> list[OnePass]:
        """Those that were not launched yet."""
        return [each for each in self.passes if each.buffer is None]


def plan(
    kernel: CompiledKernel,
    programs: int,
    folder: Path,
    *,
    most: int | None,
    memory: int,
    regions: Sequence[str],
    rules: Rules,
    say: Callable[[str], None],
) -> MultiPass:
    """The passes of a compiled kernel: chosen by what they compile to, or at most so many.

    Raises `UsageError` if it has no loop that issues MMAs, or cannot be recorded.
    """
    all_probes = find_probes(compiler.named_ttgir(kernel.asm["ttgir"]), rules, regions)
    with own_cache(folder):
        original = built(kernel)
    made: dict[Places, tuple[CompiledKernel, Recording]] = {}

    def recording_of(probed: ProbedKernel) -> Recording:
        return recording_of_launch(probed.program, original.resource_usage, programs * kernel.metadata.num_ctas, memory)

    def compile_one(probed: ProbedKernel) -> CompiledKernel:
        return recompile(kernel, Override(folder / f"{kernel.name}.ttgir", probed.text, probed.program.kernel_name))

    def build(kernels: Sequence[ProbedKernel]) -> list[Built]:
        with own_cache(folder):
            pairs = in_sessions(kernels, recording_of, compile_one)
            made.update(zip((probed.places for probed in kernels), pairs, strict=True))
            return [built(compiled) for compiled, _ in pairs]

    if most is None:
        chosen = choose_passes(all_probes, original, build, cycles=all_probes.least_cycles, say=say)
    else:
        chosen = compile_passes(all_probes, original, build, spread(all_probes, most), cycles=all_probes.least_cycles)
    return MultiPass(all_probes, [OnePass(chosen_pass, *made[chosen_pass.probed.places]) for chosen_pass in chosen])
