"""The kernels that a script launches, what of them is to be traced, and what was captured."""

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, cast, get_args

import numpy as np
from numpy.typing import NDArray

from kperf.compat.triton import CompiledKernel
from kperf.compat.triton.launches import LaunchCall
from kperf.errors import MeasurementError, UsageError
from kperf.trace import CTAS, PASSES
from kperf.trace.capture.gpu import Span
from kperf.trace.capture.instrumented import InstrumentedKernel
from kperf.trace.capture.multipass import MultiPass
from kperf.trace.capture.passes import parse
from kperf.trace.capture.pc_sampling import Sampled
from kperf.trace.instrument.session import HEADER_BYTES

Ctas = Literal["auto", "all", "sampled"]

MOST_KERNELS = 10
"""Kernels that are traced in a run."""
WARM = 3
"""The launch of a kernel that is traced, if there are so many; the first is too, for scripts that launch it once."""
ROUNDS = 5
"""Of the launches from there on, the instrumented kernel stands for every other one so often: in turn with the original
kernel, since a GPU that waited for a compiler and one that is hot are two."""
_KEPT_SPANS = 64
"""Of the original kernel's launches the last ones that were timed."""


def parse_ctas(wanted: str) -> Ctas:
    """Which CTAs somebody wants to be recorded. Raises `UsageError` for another word."""
    if wanted not in get_args(Ctas):
        raise UsageError(f"ctas={wanted!r} says not which CTAs are recorded: give auto, all or sampled")
    return cast(Ctas, wanted)


@dataclass(frozen=True)
class TraceOptions:
    """What to trace.

    `patterns`: names of kernels, with * and ?. `launch`: the launch of each kernel; None for the first and a warm one.
    `memory`: bytes for the events of a launch. `check`: launch the original kernel and the instrumented one in turn on
    the same bytes, and compare what they wrote. `passes`: over how many more launches an iteration's events are spread
    at most, None for as many as choosing finds, 1 for none. `stop`: end the script when all of this is read.
    `ctas`: which CTAs of a launch are recorded; "auto": all of them, and besides a sample where that disturbs much and
    nobody asks for several passes. `wait`: begin when no other process measures on the GPU. `samples`: let the GPU
    sample the original kernel too.
    """

    patterns: Sequence[str] = ("*",)
    launch: int | None = None
    regions: Sequence[str] = ("*",)
    memory: int = 1 << 30
    listing: bool = False
    check: bool = False
    passes: int | None = field(default_factory=lambda: parse(PASSES))
    stop: bool = False
    ctas: Ctas = field(default_factory=lambda: parse_ctas(CTAS))
    wait: bool = False
    samples: bool = False

    @property
    def wants_sampled_ctas(self) -> bool:
        """Whether sampled CTAs are recorded in another launch, where recording all of them disturbs much."""
        return self.ctas == "auto" and self.passes in (None, 1)


@dataclass
class CapturedLaunch:
    """A launch that was traced: the bytes of its events, and when the instrumented kernel ran in each round.

    `warm`: whether it is the launch to be read, and not only the first one. `original_spans`: of the original kernel's
    launches between. `same_outputs`: whether the instrumented kernel wrote what the original wrote; None if that was
    not asked for, or if the original does not write the same twice.
    """

    number: int
    warm: bool
    grid: tuple[int, int, int]
    buffer: NDArray[np.uint8]
    spans: list[Span]
    instrumented: InstrumentedKernel
    arguments: dict[str, str]
    same_outputs: bool | None
    original_spans: list[Span] = field(default_factory=list)
    rounds: int = ROUNDS
    """How many of each there are to be."""
    several: MultiPass | None = None
    """Its passes, taken from later launches of the same grid."""
    why_one: str = ""
    """Why there are none."""
    samples: Sampled | None = None
    """Of the original kernel, where they were asked for."""
    no_samples: str = ""
    """Why there are none, then."""
    sampled: "CapturedLaunch | None" = None
    """A later launch of the same grid, of which sampled CTAs were recorded, for what all of them disturb."""
    why_all: str | None = None
    """Why there is none, empty where none is needed; None as long as that is open."""

    @property
    def events_of_a_warp(self) -> int:
        """The most events that a warp wrote."""
        recording = self.instrumented.recording
        ctas = self.buffer.view(np.uint32).reshape(-1, recording.block_bytes // 4)
        counters = ctas[:, HEADER_BYTES // 4 : HEADER_BYTES // 4 + recording.total_warps]
        return int(counters.max()) // 2

    @property
    def is_complete(self) -> bool:
        """Whether no warp wrote more events than are kept."""
        return self.events_of_a_warp <= self.instrumented.recording.events_per_warp

    @property
    def in_rounds(self) -> bool:
        """Whether launches of its grid are still taken in turn."""
        return self.warm and len(self.original_spans) < self.rounds


class KernelKey(NamedTuple):
    """What tells two kernels apart: what was compiled, and for which GPU of the process."""

    hash: str
    device: int


class FunctionKey(NamedTuple):
    """What tells two functions apart: where they stand in the source, and the GPU that runs them."""

    file: str
    line: int
    name: str
    device: int


@dataclass
class Kernel:
    """A kernel that the script launched, as compiled for one signature, on one GPU."""

    compiled: CompiledKernel
    device: int
    name: str
    file: str
    line: int
    launches: int = 0
    last_launch: int = 0
    """Its number among the launches of all kernels."""
    graph_call: LaunchCall | None = None
    """The last launch that went into a CUDA graph, which is left alone."""
    grids: Counter[tuple[int, int, int]] = field(default_factory=Counter)
    cold: Span | None = None
    """The first launch, if the original kernel was launched."""
    alone: list[Span] = field(default_factory=list)
    spans: deque[Span] = field(default_factory=lambda: deque(maxlen=_KEPT_SPANS))
    taken: CapturedLaunch | None = None
    problem: UsageError | MeasurementError | None = None
    """Why it is not traced: a sentence without its name."""
    compiled_s: float = 0.0
    """Seconds that its instrumented kernel took to compile."""
    busy: bool = False
    """A thread does something in the place of a launch of it; other launches stay as they are meanwhile."""

    @property
    def key(self) -> KernelKey:
        """What tells it from other kernels."""
        return KernelKey(self.compiled.hash, self.device)

    @property
    def function(self) -> FunctionKey:
        """The function from which it was compiled."""
        return FunctionKey(self.file, self.line, self.name, self.device)

    @property
    def grid(self) -> tuple[int, int, int]:
        """That of most of its launches; (0, 0, 0) if all of them went into a CUDA graph."""
        return max(self.grids, key=lambda grid: self.grids[grid], default=(0, 0, 0))
