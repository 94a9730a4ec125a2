"""CUDA graphs take turns: how a sample is timed, when the rounds begin, and how far they lie apart.

A sample is one replay of a CUDA graph, timed by events on the stream. The graph takes Python's launch cost out; the L2
is flushed before each sample; and the flush, which the GPU is busy with while the replay is queued, hides the launch of
the graph itself. In every round all candidates take one sample each, in an order that is shuffled a round, so that
clock, power and temperature are shared fairly.

The mixture first runs untimed until it has settled: until the candidates' medians over a window of time differ from the
window's before by less than `_SETTLED` in geometric mean. (A single candidate's differ by more for ever where the power
controller hunts, at the power cap.) It then goes on without a pause, and the timed rounds are blocks of it that begin
at least `_BLOCK_S` apart, so that what the controller does now and then is a small part of any point. A long sample at
the power cap is one draw of a clock that hunts between 1450 and 1950 MHz, so of those more are taken. Later rounds are
queued before one is read: a GPU that now and then waited for a host busy with other programs drew up to 130 W less in
the mean, and at the power cap that made kernels up to 8 % faster, each by another factor. How much of the time it waits
all the same is in the record.
"""

import functools
import math
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from kperf.bench.intervals import blocks
from kperf.bench.points import Settling
from kperf.ir.compile import uncollected
from kperf.record import device
from kperf.record.store import DeviceState

TIMER = "cuda_graph_events"

_SETTLED = 0.01
_WINDOW_S = 0.25
_SETTLE_S = 1.0
"""At least this long: the GPU idled before, and its power controller averages over about a second."""
_SETTLE_AT_MOST_S = 6.0
_BLOCK_S = 0.25
_AHEAD_MS = 100.0
"""So much work is queued beyond the round that is read. NVML answers within 3 ms, but where the driver is busy."""
_MOST_AHEAD = 32
"""Rounds: the driver takes some thousand launches before a launch waits."""
_LONG_MS = 10.0
"""As many times more rounds are taken as this goes into the mean sample, once and up to `_AT_MOST_TIMES`. Of 40 rounds
on an H200 the halves of 26 of 480 points differed by more than 3 %, 25 of them with samples of 6 to 50 ms, by nothing
but the scatter of single samples: 4 to 5 % there, uncorrelated from round to round, and under 2 % elsewhere."""
_AT_MOST_TIMES = 3

FLUSH_BYTES = 256 << 20
"""Five times Hopper's 50 MB of L2."""
_CEILING_N = 8192
CEILING_FLOPS = 2 * _CEILING_N**3
"""cuBLAS's product of two bfloat16 matrices of 8192 x 8192."""


class Replayed(Protocol):
    """What takes turns: a graph, its milliseconds a call and its place in the order of each round so far."""

    graph: torch.cuda.CUDAGraph
    samples_ms: list[float]
    places: list[int]


@dataclass
class Timed:
    """What the rounds gave beside each candidate's samples."""

    settling: Settling
    states: list[DeviceState] = field(default_factory=list)
    ceiling_ms: list[float] = field(default_factory=list)
    other_processes: int = 0
    idle_share: float = 0.0


@dataclass(frozen=True)
class Turns:
    """How candidates take turns: `calls` calls a sample, the L2 flushed by writing `flush`."""

    calls: int
    ceiling: "Ceiling"
    flush: torch.Tensor
    random: np.random.Generator

    def mixture(self, candidates: Sequence[Replayed]) -> "Generator[_Round, None, None]":
        """Rounds without end, each one sample of the ceiling and one of each candidate, shuffled anew.

        Closing it waits for what is queued.
        """
        queued = deque([self._queue(candidates)])
        ahead, before = 1, queued[0].begin
        try:
            while True:
                queued.extend(self._queue(candidates) for _ in range(1 + ahead - len(queued)))
                round_ = queued.popleft()
                taken = round_.read(self.calls, before)
                ahead, before = min(math.ceil(_AHEAD_MS / taken.lasts_ms), _MOST_AHEAD), round_.end
                yield taken
        finally:
            torch.cuda.synchronize()

    def timed(self, candidates: Sequence[Replayed], rounds: int, on_step: Callable[[str], None]) -> Timed:
        """Settle and take the rounds; each candidate gets its samples."""
        on_step("settling")
        with closing(self.mixture(candidates)) as mixture:
            timed = Timed(_settle(mixture))
            rounds *= _times(self.calls * statistics.fmean(next(mixture).samples_ms))
            every = []
            for block in np.array_split(np.arange(rounds), blocks(rounds)):
                begin = time.perf_counter()
                timed.other_processes = max(timed.other_processes, device.other_processes())
                for number in block:
                    on_step(f"round {number + 1} of {rounds}")
                    every.append(taken := next(mixture))
                    timed.states.append(device.device_state())  # the GPU is at work on what is queued
                    timed.ceiling_ms.append(taken.ceiling_ms)
                    for candidate, sample_ms, place in zip(candidates, taken.samples_ms, taken.places, strict=True):
                        candidate.samples_ms.append(sample_ms)
                        candidate.places.append(place)
                while time.perf_counter() - begin < _BLOCK_S:
                    every.append(next(mixture))
        idle_ms = sum(taken.idle_ms for taken in every)
        timed.idle_share = idle_ms / (idle_ms + sum(taken.lasts_ms for taken in every))
        return timed

    def _queue(self, candidates: Sequence[Replayed]) -> "_Queued":
        order = [int(index) for index in self.random.permutation(len(candidates))]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        ceiling = timed_replay(self.ceiling.graph, self.flush)
        elapsed = {index: timed_replay(candidates[index].graph, self.flush) for index in order}
        end.record()
        return _Queued(begin, end, ceiling, elapsed)


@dataclass(frozen=True)
class _Round:
    """A time and a place in the order for each candidate; how long it lasted, and the GPU had waited for it."""

    samples_ms: list[float]
    places: list[int]
    ceiling_ms: float
    lasts_ms: float
    idle_ms: float


@dataclass(frozen=True)
class _Queued:
    """A round that the GPU computes, or will; `elapsed` in the order of the candidates in it."""

    begin: torch.cuda.Event
    end: torch.cuda.Event
    ceiling: Callable[[], float]
    elapsed: dict[int, Callable[[], float]]

    def read(self, calls: int, before: torch.cuda.Event) -> _Round:
        """Wait for its end; `before`: the end of the round before."""
        self.end.synchronize()
        order = list(self.elapsed)
        return _Round(
            samples_ms=[self.elapsed[index]() / calls for index in range(len(order))],
            places=[int(place) for place in np.argsort(order)],
            ceiling_ms=self.ceiling(),
            lasts_ms=float(self.begin.elapsed_time(self.end)),
            idle_ms=float(before.elapsed_time(self.begin)),
        )


def _settle(mixture: Iterator[_Round]) -> Settling:
    """Take rounds and forget them until two windows of them agree, or it has lasted too long."""
    begin = time.perf_counter()
    before = _window(mixture)
    while True:
        medians = _window(mixture)
        shift = abs(float(np.log(medians / before).mean()))
        seconds = time.perf_counter() - begin
        settled = shift < _SETTLED and seconds >= _SETTLE_S
        if settled or seconds >= _SETTLE_AT_MOST_S:
            return Settling(seconds=seconds, shift=shift, settled=settled)
        before = medians


def _window(mixture: Iterator[_Round]) -> np.ndarray[Any, Any]:
    """Each candidate's median over `_WINDOW_S` seconds, but over one round at the least."""
    taken: list[list[float]] = []
    begin = time.perf_counter()
    while not taken or time.perf_counter() - begin < _WINDOW_S:
        taken.append(next(mixture).samples_ms)
    return np.asarray(np.median(taken, axis=0))


def _times(sample_ms: float) -> int:
    """How many times more rounds are taken where a sample lasts so long."""
    return min(1 + int(sample_ms / _LONG_MS), _AT_MOST_TIMES)


class Ceiling:
    """cuBLAS bfloat16 8192^3: the practical ceiling, taken in turn with the others."""

    def __init__(self, products: int = 1) -> None:
        """Make the matrices and capture so many products in one graph."""
        self._a, self._b = (torch.randn(_CEILING_N, _CEILING_N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._out = torch.empty_like(self._a)
        self.graph, _ = capture_graph(lambda: torch.mm(self._a, self._b, out=self._out), products)


def time_in_turn(candidates: Sequence[Replayed], rounds: int) -> Timed:
    """Settle and take the rounds of graphs of one call each, as `measure` does; each candidate gets its samples."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    return Turns(1, Ceiling(), flush, np.random.default_rng()).timed(candidates, rounds, lambda _: None)


@functools.cache
def capture_stream() -> torch.cuda.Stream:
    """The stream of all captures. A backward pass runs on that of its forward pass, which has to be this one."""
    return torch.cuda.Stream()


def capture_graph(call: Callable[[], Any], calls: int, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `calls` calls in memory of its own, or of a `pool` that others share, and the output of the last.

    An older graph that were collected meanwhile, as part of a cycle, would invalidate the capture.
    """
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph, pool=pool, stream=capture_stream()):
        for _ in range(calls):
            output = call()
    graph.replay()
    torch.cuda.synchronize()
    return graph, output


def timed_replay(graph: torch.cuda.CUDAGraph, flush: torch.Tensor) -> Callable[[], float]:
    """Queue flush and replay; the returned function gives the milliseconds once the GPU is done."""
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    flush.zero_()
    start.record()
    graph.replay()
    end.record()
    return lambda: float(start.elapsed_time(end))
