"""The passes of a kernel that a script launches again and again: a twin of a few edges in the place of each launch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from triton.compiler import CompiledKernel

from kperf.ir import compile as compiler
from kperf.ir.override import Override, own_cache, recompile
from kperf.trace.compiler.edges import Edges, EdgeTwin, Places, find_edges
from kperf.trace.compiler.instrument import Rules
from kperf.trace.compiler.session import Recording
from kperf.trace.launch.gpu import Mark
from kperf.trace.launch.passes import Built, ChosenPass, built, choose_passes, compile_passes, in_sessions, spread
from kperf.trace.launch.twin import footprint, ring_for


@dataclass
class OnePass:
    """A pass, ready to be launched; `buffer` and `spans` once it was."""

    chosen: ChosenPass
    kernel: CompiledKernel
    recording: Recording
    buffer: NDArray[np.uint8] | None = None
    spans: Sequence[tuple[Mark, Mark]] = ()


@dataclass
class Several:
    """All passes of a kernel, for launches of one grid."""

    edges: Edges
    passes: list[OnePass] = field(default_factory=list)
    plain_spans: list[tuple[Mark, Mark]] = field(default_factory=list)
    """Of a plain launch before each of them."""

    @property
    def waiting(self) -> list[OnePass]:
        """Those that were not launched yet."""
        return [one for one in self.passes if one.buffer is None]


def plan(
    kernel: CompiledKernel,
    blocks: int,
    folder: Path,
    *,
    most: int | None,
    memory: int,
    regions: Sequence[str],
    rules: Rules,
    say: Callable[[str], None],
) -> Several:
    """The passes of a compiled kernel: chosen by what they compile to, or at most so many.

    Raises `UsageError` if it has no loop that issues matrix products, or cannot be recorded.
    """
    edges = find_edges(compiler.named_ttgir(kernel.asm["ttgir"]), rules, regions)
    plain = footprint(kernel)
    made: dict[Places, tuple[CompiledKernel, Recording]] = {}

    def recording_of(twin: EdgeTwin) -> Recording:
        return ring_for(twin.program, plain, blocks * kernel.metadata.num_ctas, memory)

    def compile_one(twin: EdgeTwin) -> CompiledKernel:
        return recompile(kernel, Override(folder / f"{kernel.name}.ttgir", twin.text, twin.program.kernel_name))

    def build(twins: Sequence[EdgeTwin]) -> list[Built]:
        with own_cache(folder):
            found = in_sessions(twins, recording_of, compile_one)
        made.update(zip((twin.places for twin in twins), found, strict=True))
        return [built(twin) for twin, _ in found]

    if most is None:
        chosen = choose_passes(edges, built(kernel), build, cycles=edges.least_cycles, say=say)
    else:
        chosen = compile_passes(edges, built(kernel), build, spread(edges, most), cycles=edges.least_cycles)
    return Several(edges, [OnePass(one, *made[one.twin.places]) for one in chosen])
