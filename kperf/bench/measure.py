"""Correct first, then timed: one workload, all implementations in turn.

A sample is one replay of a CUDA graph of `calls_per_sample` calls, timed by events on the stream. The graph takes
Python's launch cost out; the L2 is flushed before each sample; and the flush, which the GPU is busy with while the
replay is queued, hides the launch of the graph itself. In every round all implementations take one sample each, in an
order that is shuffled a round, so that clock, power and temperature are shared fairly.

The mixture first runs untimed until it has settled: until the implementations' medians over a window of time differ
from the window's before by less than `_SETTLED` in geometric mean. (A single implementation's differ by more for ever
where the power controller hunts, at the power cap.) It then goes on without a pause, and the timed rounds are blocks
of it that begin at least `_BLOCK_S` apart, so that what the controller does now and then is a small part of any point.
A long sample at the power cap is one draw of a clock that hunts between 1450 and 1950 MHz, so of those more are taken.
Buffers are not moved in between: made anew four times within a point, they changed no ratio by more than rounds do.
"""

import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from kperf.attention.implementations import Call, Implementation, Output
from kperf.attention.inputs import draw
from kperf.attention.workload import SweepName, Workload
from kperf.bench.intervals import blocks, half_shift, median_interval
from kperf.bench.points import (
    MAX_LSE_ERROR,
    MAX_REL_ERROR,
    FailedPoint,
    Figure,
    MeasuredPoint,
    Point,
    Settling,
)
from kperf.errors import MeasurementError
from kperf.record import device
from kperf.record.store import DeviceState

TIMER = "cuda_graph_events"

_SETTLED = 0.01
_WINDOW_S = 0.25
_SETTLE_S = 1.0
"""At least this long: the GPU idled before, and its power controller averages over about a second."""
_SETTLE_AT_MOST_S = 6.0
_BLOCK_S = 0.25
_LONG_MS = 10.0
"""As many times more rounds are taken as this goes into the mean sample, once and up to `_AT_MOST_TIMES`. Of 40 rounds
on an H200 the halves of 26 of 480 points differed by more than 3 %, 25 of them with samples of 6 to 50 ms, by nothing
but the scatter of single samples: 4 to 5 % there, uncorrelated from round to round, and under 2 % elsewhere."""
_AT_MOST_TIMES = 3

_SAMPLE_MS = 0.5
_MAX_CALLS_PER_SAMPLE = 64
_EAGER_CALLS = 15
FLUSH_BYTES = 256 << 20
"""Five times Hopper's 50 MB of L2."""
_CEILING_N = 8192
CEILING_FLOPS = 2 * _CEILING_N**3
"""cuBLAS's product of two bfloat16 matrices of 8192 x 8192."""


@dataclass(frozen=True)
class Inputs:
    """q, k, v [batch, heads, seq_len, head_dim] and, in float32, the exact o and lse [batch, heads, seq_len]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor


@dataclass
class Candidate:
    """A right implementation: its graph, the call that keeps alive what the graph reads, and the samples so far."""

    implementation: Implementation
    call: Call
    graph: torch.cuda.CUDAGraph
    rel_error: float
    lse_error: float | None
    samples_ms: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


class _WrongError(Exception):
    """An implementation that runs and is wrong; carries its error."""

    def __init__(self, message: str, rel_error: float | None) -> None:
        super().__init__(message)
        self.rel_error = rel_error


def make_inputs(workload: Workload, seed: int, device_name: str = "cuda") -> Inputs:
    """Fresh inputs of the workload's kind, and the float32 reference by slices of one head, so that 16 x 16384 fits."""
    q, k, v = draw(workload.inputs, workload.shape, getattr(torch, workload.dtype), seed, device_name)
    o, lse = reference(q, k, v, workload.causal, workload.sm_scale)
    return Inputs(q, k, v, o, lse)


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * sm_scale) v and the natural log-sum-exp of each row, in float32, head by head.

    q, k, v: [batch, heads, seq_len, head_dim] of any type; o: the same shape; lse: [batch, heads, seq_len].
    """
    batch, heads, seq_len, _ = q.shape
    o = torch.empty_like(q, dtype=torch.float32)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    mask = torch.ones(seq_len, seq_len, dtype=torch.bool, device=q.device).triu(1) if causal else None
    for b in range(batch):
        for h in range(heads):
            scores = q[b, h].float() @ k[b, h].float().T * sm_scale
            if mask is not None:
                scores.masked_fill_(mask, -math.inf)
            lse[b, h] = torch.logsumexp(scores, -1)
            o[b, h] = scores.sub_(lse[b, h][:, None]).exp_() @ v[b, h].float()
    return o, lse


def errors(output: Output, inputs: Inputs) -> tuple[float, float | None]:
    """(|o - ref| / |ref|, largest |lse - ref| or None); not a number where the output is not."""
    o, lse = output
    difference = squares = 0.0
    for b in range(o.shape[0]):  # by batch: a float64 copy of the whole output need not fit
        exact = inputs.o[b].double()
        difference += float((o[b].double() - exact).square().sum())
        squares += float(exact.square().sum())
    lse_error = None if lse is None else float((lse - inputs.lse).abs().max())
    return math.sqrt(difference / squares), lse_error


class _Run:
    """What all points of one workload share, and the points that there are already."""

    def __init__(self, workload: Workload, **common: Any) -> None:
        self.workload = workload
        self.common = {"flops": workload.flops, **common, **workload.model_dump()}
        self.points: dict[str, Point] = {}

    def fields(self, implementation: Implementation) -> dict[str, Any]:
        """Those of any point of an implementation."""
        override = None if implementation.unsupported(self.workload) else implementation.override(self.workload)
        return {
            **self.common,
            "implementation": implementation.key,
            "override_sha256": override.sha256 if override else None,
            "recorded_at": device.now(),
        }

    def fail(
        self,
        implementation: Implementation,
        status: Literal["wrong", "oom", "unsupported", "failed"],
        message: str,
        rel_error: float | None = None,
    ) -> None:
        """Its point has no time but says why; the first reason counts."""
        if rel_error is not None and not math.isfinite(rel_error):
            rel_error = None
        point = FailedPoint(**self.fields(implementation), status=status, message=message, rel_error=rel_error)
        self.points.setdefault(implementation.key, point)

    def attempt(self, implementation: Implementation, action: Callable[[], Any]) -> Any:
        """The action's result, or None and a point that says why there is none."""
        try:
            return action()
        except _WrongError as wrong:
            self.fail(implementation, "wrong", str(wrong), wrong.rel_error)
        except torch.OutOfMemoryError:
            self.fail(implementation, "oom", "the GPU's memory is too small for this implementation")
        except torch.AcceleratorError as error:
            message = f"{implementation.label} on {self.workload} broke the GPU's context: {_first_line(error)}"
            raise MeasurementError(message) from None
        except Exception as error:  # whatever a library raises is this implementation's failure, not the sweep's
            self.fail(implementation, "failed", _first_line(error))
        return None


@dataclass(frozen=True)
class _Turns:
    """Takes rounds of the candidates that there are: `calls` calls a sample, the L2 flushed by writing `flush`."""

    calls: int
    ceiling: "Ceiling"
    flush: torch.Tensor
    random: np.random.Generator

    def take(self, candidates: Sequence[Candidate]) -> "_Round":
        """One sample of the ceiling and one of each candidate, shuffled; the GPU's state as it works."""
        order = self.random.permutation(len(candidates))
        ceiling = timed_replay(self.ceiling.graph, self.flush)
        elapsed = {int(index): timed_replay(candidates[index].graph, self.flush) for index in order}
        state = device.device_state()
        torch.cuda.synchronize()
        return _Round(
            samples_ms=[elapsed[index]() / self.calls for index in range(len(candidates))],
            places=[int(place) for place in np.argsort(order)],
            ceiling_ms=ceiling(),
            state=state,
        )

    def settle(self, candidates: Sequence[Candidate]) -> Settling:
        """Take rounds and forget them until two windows of them agree, or it has lasted too long."""
        begin = time.perf_counter()
        before = self._window(candidates)
        while True:
            medians = self._window(candidates)
            shift = abs(float(np.log(medians / before).mean()))
            seconds = time.perf_counter() - begin
            settled = shift < _SETTLED and seconds >= _SETTLE_S
            if settled or seconds >= _SETTLE_AT_MOST_S:
                return Settling(seconds=seconds, shift=shift, settled=settled)
            before = medians

    def _window(self, candidates: Sequence[Candidate]) -> np.ndarray[Any, Any]:
        """Each candidate's median over `_WINDOW_S` seconds, but over one round at the least."""
        taken: list[list[float]] = []
        begin = time.perf_counter()
        while not taken or time.perf_counter() - begin < _WINDOW_S:
            taken.append(self.take(candidates).samples_ms)
        return np.asarray(np.median(taken, axis=0))


@dataclass(frozen=True)
class _Round:
    """A time and a place in the order for each candidate."""

    samples_ms: list[float]
    places: list[int]
    ceiling_ms: float
    state: DeviceState


@dataclass
class _Timed:
    """What the rounds gave beside each candidate's samples."""

    settling: Settling
    states: list[DeviceState] = field(default_factory=list)
    ceiling_ms: list[float] = field(default_factory=list)
    other_processes: int = 0


def measure(
    workloads: Sequence[Workload],
    implementations: Sequence[Implementation],
    *,
    figure: Figure,
    sweep: SweepName,
    environment: str,
    rounds: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """Check and time all implementations on each workload, all in turn; one point each, all of one run.

    Several workloads are of one shape and differ in their inputs. An implementation that is unsupported, wrong, out of
    memory or raises gets a point that says so and no time; the others go on. Raises `MeasurementError` only if the GPU
    itself is lost.
    """
    common = {"run": secrets.token_hex(6), "figure": figure, "sweep": sweep, "environment": environment}
    runs = [_Run(workload, **common) for workload in workloads]
    seed = secrets.randbits(32)
    try:
        inputs = [make_inputs(workload, seed) for workload in workloads]
        ceiling = Ceiling()
        flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device=inputs[0].q.device)
    except torch.OutOfMemoryError:
        for run in runs:
            for implementation in implementations:
                run.fail(implementation, "oom", "the inputs and the float32 reference do not fit in the GPU's memory")
    else:
        candidates, calls = _prepare(list(zip(runs, inputs, strict=True)), implementations, on_step)
        turns = _Turns(calls, ceiling, flush, np.random.default_rng(seed))
        if candidates:
            _time_all(candidates, turns, rounds, on_step)
    return [run.points[implementation.key] for run in runs for implementation in implementations]


def _prepare(
    runs: Sequence[tuple[_Run, Inputs]], implementations: Sequence[Implementation], on_step: Callable[[str], None]
) -> tuple[list[tuple[_Run, Candidate]], int]:
    """Compile and check; those that are right, and how many calls each sample of theirs has."""
    bound: list[tuple[_Run, Inputs, Implementation, Call, float]] = []
    for run, inputs in runs:
        for implementation in implementations:
            on_step(f"compiling {implementation.label}")
            if reason := implementation.unsupported(run.workload) or implementation.missing():
                run.fail(implementation, "unsupported", reason)
            elif found := run.attempt(implementation, partial(_bind, implementation, run.workload, inputs)):
                bound.append((run, inputs, implementation, *found))
    calls = _calls_per_sample([milliseconds for *_, milliseconds in bound])
    candidates = []
    for run, inputs, implementation, call, _ in bound:
        on_step(f"checking {implementation.label}")
        check = partial(_check, implementation, call, calls, run.workload, inputs)
        if candidate := run.attempt(implementation, check):
            candidates.append((run, candidate))
    return candidates, calls


def _time_all(
    candidates: Sequence[tuple[_Run, Candidate]], turns: _Turns, rounds: int, on_step: Callable[[str], None]
) -> None:
    """Time them in turn, then single calls of each; their runs get the points."""
    timed = _time([candidate for _, candidate in candidates], turns, rounds, on_step)
    for run, candidate in candidates:
        eager_ms = run.attempt(candidate.implementation, partial(_eager_ms, candidate.call, turns.flush))
        if eager_ms is not None:
            run.points[candidate.implementation.key] = _point(run, candidate, turns.calls, timed, eager_ms)


def _time(candidates: Sequence[Candidate], turns: _Turns, rounds: int, on_step: Callable[[str], None]) -> _Timed:
    """Settle and take the rounds; each candidate gets its samples."""
    on_step("settling")
    timed = _Timed(turns.settle(candidates))
    rounds *= _times(turns.calls * statistics.fmean(turns.take(candidates).samples_ms))
    for block in np.array_split(np.arange(rounds), blocks(rounds)):
        begin = time.perf_counter()
        timed.other_processes = max(timed.other_processes, device.other_processes())
        for number in block:
            on_step(f"round {number + 1} of {rounds}")
            taken = turns.take(candidates)
            timed.states.append(taken.state)
            timed.ceiling_ms.append(taken.ceiling_ms)
            for candidate, sample_ms, place in zip(candidates, taken.samples_ms, taken.places, strict=True):
                candidate.samples_ms.append(sample_ms)
                candidate.places.append(place)
        while time.perf_counter() - begin < _BLOCK_S:
            turns.take(candidates)
    return timed


def _times(sample_ms: float) -> int:
    """How many times more rounds are taken where a sample lasts so long."""
    return min(1 + int(sample_ms / _LONG_MS), _AT_MOST_TIMES)


def _point(run: _Run, candidate: Candidate, calls: int, timed: _Timed, eager_ms: float) -> MeasuredPoint:
    median = statistics.median(candidate.samples_ms)
    return MeasuredPoint(
        **run.fields(candidate.implementation),
        rel_error=candidate.rel_error,
        lse_error=candidate.lse_error,
        samples_ms=candidate.samples_ms,
        calls_per_sample=calls,
        median_ms=median,
        ci95_ms=median_interval(candidate.samples_ms),
        half_shift=half_shift(candidate.samples_ms),
        eager_ms=eager_ms,
        tflops=run.workload.flops / median / 1e9,
        ceiling_tflops=CEILING_FLOPS / statistics.median(timed.ceiling_ms) / 1e9,
        timer=TIMER,
        settling=timed.settling,
        other_processes=timed.other_processes,
        round_order=candidate.places,
        device_states=timed.states,
        message=candidate.implementation.note(),
    )


class Ceiling:
    """cuBLAS bfloat16 8192^3: the practical ceiling, taken in turn with the others."""

    def __init__(self, products: int = 1) -> None:
        """Make the matrices and capture so many products in one graph."""
        self._a, self._b = (torch.randn(_CEILING_N, _CEILING_N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._out = torch.empty_like(self._a)
        self.graph, _ = capture_graph(lambda: torch.mm(self._a, self._b, out=self._out), products)


def prepare_alone(
    implementation: Implementation, workload: Workload, inputs: Inputs, milliseconds: float
) -> tuple[Candidate, int]:
    """A graph of enough calls for so many milliseconds, its output checked, and its floating-point operations.

    Raises `MeasurementError` if the output is wrong.
    """
    call, once = _bind(implementation, workload, inputs)
    calls = max(1, math.ceil(milliseconds / once))
    try:
        candidate = _check(implementation, call, calls, workload, inputs)
    except _WrongError as wrong:
        raise MeasurementError(f"{implementation.label} on {workload}: {wrong}") from None
    return candidate, calls * workload.flops


def check(implementation: Implementation, workload: Workload, seed: int = 0) -> float:
    """Run an implementation once on fresh inputs; its relative error. Raises `MeasurementError` if it is wrong."""
    inputs = make_inputs(workload, seed)
    call, _ = _bind(implementation, workload, inputs)
    try:
        return _check(implementation, call, 1, workload, inputs).rel_error
    except _WrongError as error:
        raise MeasurementError(f"{implementation.label} on {workload}: {error}") from None


def _bind(implementation: Implementation, workload: Workload, inputs: Inputs) -> tuple[Call, float]:
    """Compile and autotune; the call and about how many milliseconds the GPU needs for it."""
    call = implementation.bind(inputs.q, inputs.k, inputs.v, workload.causal, workload.sm_scale)
    graph, _ = capture_graph(call, 1)
    replays = 3
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return call, float(start.elapsed_time(end)) / replays


def _calls_per_sample(milliseconds: Sequence[float]) -> int:
    """Enough calls for a sample of the fastest to outlast the timer's grain; the same for all, for fairness."""
    fastest = min(milliseconds, default=_SAMPLE_MS)
    return max(1, min(_MAX_CALLS_PER_SAMPLE, math.ceil(_SAMPLE_MS / fastest)))


def _check(implementation: Implementation, call: Call, calls: int, workload: Workload, inputs: Inputs) -> Candidate:
    """Capture what will be timed, and check what that graph writes into a poisoned output."""
    graph, output = capture_graph(call, calls)
    for tensor in output:
        if tensor is not None:
            tensor.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    rel_error, lse_error = errors(output, inputs)
    limit = MAX_REL_ERROR[workload.dtype]
    if not rel_error <= limit:  # a NaN is not within the limit
        raise _WrongError(f"relative error {rel_error:.2e} against float32 exceeds {limit:.0e}", rel_error)
    if lse_error is not None and not lse_error <= MAX_LSE_ERROR:
        raise _WrongError(f"log-sum-exp is off by {lse_error:.2e}, more than {MAX_LSE_ERROR:.0e}", rel_error)
    return Candidate(implementation, call, graph, rel_error, lse_error)


def capture_graph(call: Callable[[], Any], calls: int) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `calls` calls, and the output of the last."""
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
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


def _eager_ms(call: Call, flush: torch.Tensor) -> float:
    """Median wall time of one call as a user without graphs sees it: from Python to the end on the GPU."""
    times = []
    for _ in range(_EAGER_CALLS):
        flush.zero_()
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        times.append((time.perf_counter() - begin) * 1e3)
    return statistics.median(times)


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
