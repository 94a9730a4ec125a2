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
Later rounds are queued before one is read: a GPU that now and then waited for a host busy with other programs drew up
to 130 W less in the mean, and at the power cap that made kernels up to 8 % faster, each by another factor. How much of
the time it waits all the same is in the record.
Buffers are not moved in between: made anew four times within a point, they changed no ratio by more than rounds do.
"""

import functools
import math
import secrets
import statistics
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any, Literal, Protocol

import numpy as np
import torch

from kperf.attention.implementations import Implementation
from kperf.attention.inputs import draw
from kperf.attention.libraries import Call, Output
from kperf.attention.workload import SweepName, Workload
from kperf.bench.intervals import blocks, half_shift, median_interval
from kperf.bench.points import (
    BACKWARD_ERROR,
    MAX_LSE_ERROR,
    MAX_REL_ERROR,
    FailedPoint,
    Figure,
    MeasuredPoint,
    Point,
    Settling,
)
from kperf.errors import MeasurementError, UsageError
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
    """q, k, v [batch, heads, seq_len, head_dim] and, in float32, the exact o and lse [batch, heads, seq_len].

    k and v may have fewer heads. For a backward pass do, the gradient of o, and, in float32, the exact dq, dk, dv.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor | None = None
    gradients: tuple[torch.Tensor, ...] = ()


class Replayed(Protocol):
    """What takes turns: a graph, its milliseconds a call and its place in the order of each round so far."""

    graph: torch.cuda.CUDAGraph
    samples_ms: list[float]
    places: list[int]


@dataclass
class Candidate:
    """A right implementation: its graph, the call that keeps alive what the graph reads, and the samples so far."""

    implementation: Implementation
    call: Callable[[], Any]
    graph: torch.cuda.CUDAGraph
    rel_error: float
    lse_error: float | None
    peak_bytes: int
    samples_ms: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class _Bound:
    """A call that is compiled and autotuned, about how long the GPU needs for it, and what memory."""

    call: Callable[[], Any]
    milliseconds: float
    peak_bytes: int


class _WrongError(Exception):
    """An implementation that runs and is wrong; carries its error."""

    def __init__(self, message: str, rel_error: float | None) -> None:
        super().__init__(message)
        self.rel_error = rel_error


def make_inputs(workload: Workload, seed: int, device_name: str = "cuda") -> Inputs:
    """Fresh inputs of the workload's kind, and the float32 reference by slices of one head, so that 16 x 16384 fits."""
    dtype = getattr(torch, workload.dtype)
    q, k, v = draw(workload.inputs, workload.shape, dtype, seed, device_name, workload.kv_heads)
    o, lse = reference(q, k, v, workload.causal, workload.sm_scale)
    if not workload.backward:
        return Inputs(q, k, v, o, lse)
    do, *_ = draw("normal", workload.shape, dtype, seed + 1, device_name)
    return Inputs(q, k, v, o, lse, do, reference_gradients(q, k, v, o, lse, do, workload.causal, workload.sm_scale))


def reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool, sm_scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(q k^T * sm_scale) v and the natural log-sum-exp of each row, in float32, head by head.

    q: [batch, heads, seq_len, head_dim] of any type; k, v: the same, or of fewer heads; o: the shape of q; lse:
    [batch, heads, seq_len].
    """
    o = torch.empty_like(q, dtype=torch.float32)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    mask = _above_diagonal(q) if causal else None
    for b, h, kv_h in _heads(q, k):
        scores = _scores(q[b, h], k[b, kv_h], mask, sm_scale)
        lse[b, h] = torch.logsumexp(scores, -1)
        o[b, h] = scores.sub_(lse[b, h][:, None]).exp_() @ v[b, kv_h].float()
    return o, lse


def reference_gradients(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    o: torch.Tensor,
    lse: torch.Tensor,
    do: torch.Tensor,
    causal: bool,
    sm_scale: float,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """dq, dk, dv in float32, head by head, from what `reference` gives and do, the gradient of o (the shape of q).

    dv = p^T do, ds = p * (do v^T - rowsum(do * o)), dq = ds k * sm_scale, dk = ds^T q * sm_scale (FlashAttention-2,
    arXiv 2307.08691, section 2.3.2); heads of q that share one of k and v add up.
    """
    dq, dk, dv = (torch.zeros_like(tensor, dtype=torch.float32) for tensor in (q, k, v))
    mask = _above_diagonal(q) if causal else None
    for b, h, kv_h in _heads(q, k):
        p = _scores(q[b, h], k[b, kv_h], mask, sm_scale).sub_(lse[b, h][:, None]).exp_()
        d_o = do[b, h].float()
        dv[b, kv_h] += p.T @ d_o
        ds = p.mul_(d_o @ v[b, kv_h].float().T - (d_o * o[b, h]).sum(-1, keepdim=True))
        dq[b, h] = ds @ k[b, kv_h].float() * sm_scale
        dk[b, kv_h] += ds.T @ q[b, h].float() * sm_scale
    return dq, dk, dv


def _heads(q: torch.Tensor, k: torch.Tensor) -> Iterator[tuple[int, int, int]]:
    """Batch, head of q, and the head of k and v that it shares."""
    for b, h in product(range(q.shape[0]), range(q.shape[1])):
        yield b, h, h * k.shape[1] // q.shape[1]


def _above_diagonal(q: torch.Tensor) -> torch.Tensor:
    return torch.ones(q.shape[2], q.shape[2], dtype=torch.bool, device=q.device).triu(1)


def _scores(q: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, sm_scale: float) -> torch.Tensor:
    """Of one head, [seq_len, seq_len]; minus infinity where the mask is."""
    scores = q.float() @ k.float().T * sm_scale
    return scores if mask is None else scores.masked_fill_(mask, -math.inf)


def errors(output: Output, inputs: Inputs) -> tuple[float, float | None]:
    """(|o - ref| / |ref|, largest |lse - ref| or None); not a number where the output is not."""
    o, lse = output
    lse_error = None if lse is None else float((lse - inputs.lse).abs().max())
    return _rel_error(o, inputs.o), lse_error


def gradient_error(gradients: Sequence[torch.Tensor], inputs: Inputs) -> float:
    """The largest of |d - ref| / |ref| over dq, dk and dv; not a number where one of them is not."""
    found = [_rel_error(d, exact) for d, exact in zip(gradients, inputs.gradients, strict=True)]
    return math.nan if any(map(math.isnan, found)) else max(found)


def max_rel_error(implementation: Implementation, workload: Workload) -> float:
    """What its relative error is held to."""
    times = BACKWARD_ERROR if workload.backward else 1.0
    return MAX_REL_ERROR[workload.dtype] * times * implementation.tolerance


def _rel_error(found: torch.Tensor, reference: torch.Tensor) -> float:
    difference = squares = 0.0
    for b in range(found.shape[0]):  # by batch: a float64 copy of the whole output need not fit
        exact = reference[b].double()
        difference += float((found[b].double() - exact).square().sum())
        squares += float(exact.square().sum())
    return math.sqrt(difference / squares)


class _Run:
    """What all points of one workload share, and the points that there are already."""

    def __init__(self, workload: Workload, **common: Any) -> None:
        self.workload = workload
        self.common = {"flops": workload.flops, **common, **workload.model_dump()}
        self.points: dict[str, Point] = {}

    def fields(self, implementation: Implementation) -> dict[str, Any]:
        """Those of any point of an implementation."""
        override = None if implementation.refuses(self.workload) else implementation.override(self.workload)
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
        held = torch.cuda.memory_allocated() / 1e9
        try:
            return action()
        except UsageError as refused:
            self.fail(implementation, "unsupported", str(refused))
        except _WrongError as wrong:
            self.fail(implementation, "wrong", str(wrong), wrong.rel_error)
        except torch.OutOfMemoryError:
            held_by = f"beside the {held:.1f} GB that the inputs and the other implementations hold"
            self.fail(implementation, "oom", f"the GPU's memory is too small for this implementation {held_by}")
        except torch.AcceleratorError as error:
            message = f"{implementation.label} on {self.workload} broke the GPU's context: {_first_line(error)}"
            raise MeasurementError(message) from None
        except Exception as error:  # whatever a library raises is this implementation's failure, not the sweep's
            self.fail(implementation, "failed", _first_line(error))
        return None


@dataclass(frozen=True)
class _Turns:
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
                one = queued.popleft()
                taken = one.read(self.calls, before)
                ahead, before = min(math.ceil(_AHEAD_MS / taken.lasts_ms), _MOST_AHEAD), one.end
                yield taken
        finally:
            torch.cuda.synchronize()

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


@dataclass
class Timed:
    """What the rounds gave beside each candidate's samples."""

    settling: Settling
    states: list[DeviceState] = field(default_factory=list)
    ceiling_ms: list[float] = field(default_factory=list)
    other_processes: int = 0
    idle_share: float = 0.0


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
    bound: list[tuple[_Run, Inputs, Implementation, _Bound]] = []
    for run, inputs in runs:
        for implementation in implementations:
            on_step(f"compiling {implementation.label}")
            if reason := implementation.refuses(run.workload) or implementation.missing():
                run.fail(implementation, "unsupported", reason)
            elif found := run.attempt(implementation, partial(_bind, implementation, run.workload, inputs)):
                bound.append((run, inputs, implementation, found))
    calls = _calls_per_sample([found.milliseconds for *_, found in bound])
    # One graph is replayed at a time and reads nothing of another: they share the memory of what they write.
    pool = torch.cuda.graph_pool_handle()
    candidates = []
    for run, inputs, implementation, found in bound:
        on_step(f"checking {implementation.label}")
        check = partial(_check, implementation, found, calls, run.workload, inputs, pool)
        if candidate := run.attempt(implementation, check):
            candidates.append((run, candidate))
    return candidates, calls


def time_in_turn(candidates: Sequence[Replayed], rounds: int) -> Timed:
    """Settle and take the rounds of graphs of one call each, as `measure` does; each candidate gets its samples."""
    flush = torch.empty(FLUSH_BYTES, dtype=torch.int8, device="cuda")
    turns = _Turns(1, Ceiling(), flush, np.random.default_rng())
    return _time(candidates, turns, rounds, lambda _: None)


def _time_all(
    candidates: Sequence[tuple[_Run, Candidate]], turns: _Turns, rounds: int, on_step: Callable[[str], None]
) -> None:
    """Time them in turn, then single calls of each; their runs get the points."""
    timed = _time([candidate for _, candidate in candidates], turns, rounds, on_step)
    for _, candidate in candidates:
        candidate.graph.reset()  # a single call needs the memory once more
    for run, candidate in candidates:
        eager_ms = run.attempt(candidate.implementation, partial(_eager_ms, candidate.call, turns.flush))
        if eager_ms is not None:
            run.points[candidate.implementation.key] = _point(run, candidate, turns.calls, timed, eager_ms)


def _time(candidates: Sequence[Replayed], turns: _Turns, rounds: int, on_step: Callable[[str], None]) -> Timed:
    """Settle and take the rounds; each candidate gets its samples."""
    on_step("settling")
    with closing(turns.mixture(candidates)) as mixture:
        timed = Timed(_settle(mixture))
        rounds *= _times(turns.calls * statistics.fmean(next(mixture).samples_ms))
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


def _times(sample_ms: float) -> int:
    """How many times more rounds are taken where a sample lasts so long."""
    return min(1 + int(sample_ms / _LONG_MS), _AT_MOST_TIMES)


def _point(run: _Run, candidate: Candidate, calls: int, timed: Timed, eager_ms: float) -> MeasuredPoint:
    median = statistics.median(candidate.samples_ms)
    return MeasuredPoint(
        **run.fields(candidate.implementation),
        rel_error=candidate.rel_error,
        max_rel_error=max_rel_error(candidate.implementation, run.workload),
        peak_bytes=candidate.peak_bytes,
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
        idle_share=timed.idle_share,
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
    bound = _bind(implementation, workload, inputs)
    calls = max(1, math.ceil(milliseconds / bound.milliseconds))
    try:
        candidate = _check(implementation, bound, calls, workload, inputs)
    except _WrongError as wrong:
        raise MeasurementError(f"{implementation.label} on {workload}: {wrong}") from None
    return candidate, calls * workload.flops


def check(implementation: Implementation, workload: Workload, seed: int = 0) -> float:
    """Run an implementation once on fresh inputs; its relative error. Raises `MeasurementError` if it is wrong."""
    inputs = make_inputs(workload, seed)
    bound = _bind(implementation, workload, inputs)
    try:
        return _check(implementation, bound, 1, workload, inputs).rel_error
    except _WrongError as error:
        raise MeasurementError(f"{implementation.label} on {workload}: {error}") from None


def check_on_cpu(implementation: Implementation, workload: Workload, seed: int = 0) -> float:
    """Compute a small workload on the CPU; its relative error. Raises `MeasurementError` if that is too large."""
    inputs = make_inputs(workload, seed, "cpu")
    operands = inputs.q, inputs.k, inputs.v
    if inputs.do is None:
        found, _ = errors(implementation.forward(*operands, workload.causal, workload.sm_scale)(), inputs)
    else:
        call = implementation.backward(*operands, inputs.do, workload.causal, workload.sm_scale)
        found = gradient_error(call(), inputs)
    if not found <= max_rel_error(implementation, workload):
        raise MeasurementError(f"{implementation.label} on the CPU, {workload}: relative error {found:.2e}")
    return found


def _bind(implementation: Implementation, workload: Workload, inputs: Inputs) -> _Bound:
    """Compile and autotune, and try the call."""
    call, peak_bytes = (_bind_backward if workload.backward else _bind_forward)(implementation, workload, inputs)
    graph, _ = capture_graph(call, 1)
    replays = 3
    start = torch.cuda.Event(enable_timing=True)
    end = torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    torch.cuda.synchronize()
    return _Bound(call, float(start.elapsed_time(end)) / replays, peak_bytes)


def _bind_forward(implementation: Implementation, workload: Workload, inputs: Inputs) -> tuple[Call, int]:
    call = implementation.forward(inputs.q, inputs.k, inputs.v, workload.causal, workload.sm_scale)
    call()
    return call, _peak_bytes(call)


def _bind_backward(
    implementation: Implementation, workload: Workload, inputs: Inputs
) -> tuple[Callable[[], tuple[torch.Tensor, ...]], int]:
    """The call, and what it takes with its forward pass, whose saved tensors it reads."""
    assert inputs.do is not None  # make_inputs made them for this workload
    operands = inputs.q, inputs.k, inputs.v, inputs.do, workload.causal, workload.sm_scale

    def step() -> Callable[[], tuple[torch.Tensor, ...]]:
        _capturing().wait_stream(torch.cuda.current_stream())  # on which the operands are made
        with torch.cuda.stream(_capturing()):
            call = implementation.backward(*operands)
        call()
        return call

    step()
    peak_bytes = _peak_bytes(step)
    return step(), peak_bytes


def _peak_bytes(action: Callable[[], object]) -> int:
    """The most that torch's allocator holds while it runs, beyond what it holds before."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    action()
    torch.cuda.synchronize()
    return int(torch.cuda.max_memory_allocated()) - before


def _calls_per_sample(milliseconds: Sequence[float]) -> int:
    """Enough calls for a sample of the fastest to outlast the timer's grain; the same for all, for fairness."""
    fastest = min(milliseconds, default=_SAMPLE_MS)
    return max(1, min(_MAX_CALLS_PER_SAMPLE, math.ceil(_SAMPLE_MS / fastest)))


def _check(
    implementation: Implementation, bound: _Bound, calls: int, workload: Workload, inputs: Inputs, pool: Any = None
) -> Candidate:
    """Capture what will be timed, and check what that graph writes into a poisoned output."""
    graph, output = capture_graph(bound.call, calls, pool)
    for tensor in output:
        if tensor is not None:
            tensor.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    rel_error, lse_error = (gradient_error(output, inputs), None) if workload.backward else errors(output, inputs)
    limit = max_rel_error(implementation, workload)
    if not rel_error <= limit:  # a NaN is not within the limit
        raise _WrongError(f"relative error {rel_error:.2e} against float32 exceeds {limit:.2g}", rel_error)
    if lse_error is not None and not lse_error <= MAX_LSE_ERROR:
        raise _WrongError(f"log-sum-exp is off by {lse_error:.2e}, more than {MAX_LSE_ERROR:.0e}", rel_error)
    return Candidate(implementation, bound.call, graph, rel_error, lse_error, bound.peak_bytes)


@functools.cache
def _capturing() -> torch.cuda.Stream:
    """The stream of all captures. A backward pass runs on that of its forward pass, which has to be this one."""
    return torch.cuda.Stream()


def capture_graph(call: Callable[[], Any], calls: int, pool: Any = None) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A graph of `calls` calls in memory of its own, or of a `pool` that others share, and the output of the last.

    An older graph that were collected meanwhile, as part of a cycle, would invalidate the capture.
    """
    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with uncollected(), torch.cuda.graph(graph, pool=pool, stream=_capturing()):
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


def _eager_ms(call: Callable[[], object], flush: torch.Tensor) -> float:
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
