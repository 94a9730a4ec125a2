"""Correct first, then timed: one workload, all implementations in turn.

A sample (`bench.turns`) is one replay of a graph of `calls_per_sample` calls, the same for all. Buffers are not moved
in between: made anew four times within a point, they changed no ratio by more than rounds do.
"""

import math
import re
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import numpy as np
import torch

from kperf.attention.implementations import Implementation
from kperf.attention.libraries import Call
from kperf.attention.workload import SweepName, Workload
from kperf.bench.points import BACKWARD_ERROR, MAX_LSE_ERROR, MAX_REL_ERROR, FailedPoint, Figure, MeasuredPoint, Point
from kperf.bench.reference import Exact, Inputs, errors, expected_of, gradient_error, make_inputs
from kperf.bench.turns import CEILING_FLOPS, FLUSH_BYTES, TIMER, Ceiling, Timed, Turns, capture_graph, capture_stream
from kperf.errors import MeasurementError, UsageError, kind_and_line
from kperf.record import device
from kperf.record.store import DeviceStates

_SAMPLE_MS = 0.5
_MAX_CALLS_PER_SAMPLE = 64
_EAGER_CALLS = 15
_MOST_CHARACTERS = 200
"""Characters of what an implementation's error says."""
_ABI_ALLOCATION = re.compile(r'torch_call_dispatcher\( "aten::(new_)?empty')
"""How an extension on torch's stable ABI, as FA3 is, reports that there is no memory: the error's type is lost."""


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


class BrokenGpuError(MeasurementError):
    """An implementation broke the GPU's context: nothing runs in this process any more."""

    def __init__(self, message: str, key: str) -> None:
        """`key`: the implementation's."""
        super().__init__(message)
        self.key = key


class _WrongError(Exception):
    """An implementation that runs and is wrong; carries its error."""

    def __init__(self, message: str, rel_error: float | None) -> None:
        super().__init__(message)
        self.rel_error = rel_error


def max_rel_error(implementation: Implementation, workload: Workload) -> float:
    """What its relative error is held to."""
    times = BACKWARD_ERROR if workload.backward else 1.0
    return MAX_REL_ERROR[workload.dtype] * times * implementation.tolerance


class _Run:
    """What all points of one workload share, and the points that there are already."""

    def __init__(self, workload: Workload, **common: Any) -> None:
        self.workload = workload
        self.common = {**common, **workload.model_dump()}
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
        except torch.AcceleratorError as error:
            why = kind_and_line(error, _MOST_CHARACTERS)
            message = f"{implementation.label} on {self.workload} broke the GPU's context: {why}"
            raise BrokenGpuError(message, implementation.key) from None
        except Exception as error:  # whatever a library raises is this implementation's failure, not the sweep's
            if isinstance(error, torch.OutOfMemoryError) or _ABI_ALLOCATION.search(str(error)):
                held_by = f"beside the {held:.1f} GB that the inputs and the other implementations hold"
                self.fail(implementation, "oom", f"the GPU's memory is too small for this implementation {held_by}")
            else:
                self.fail(implementation, "failed", kind_and_line(error, _MOST_CHARACTERS))
        return None


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
    memory or raises gets a point that says so and no time; the others go on. Raises `BrokenGpuError` only, if the GPU
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
                run.fail(implementation, "oom", "the inputs do not fit in the GPU's memory")
    else:
        candidates, calls = _prepare(list(zip(runs, inputs, strict=True)), implementations, on_step)
        turns = Turns(calls, ceiling, flush, np.random.default_rng(seed))
        if candidates:
            _time_all(candidates, turns, rounds, on_step)
    return [run.points[implementation.key] for run in runs for implementation in implementations]


def _prepare(
    runs: Sequence[tuple[_Run, Inputs]], implementations: Sequence[Implementation], on_step: Callable[[str], None]
) -> tuple[list[tuple[_Run, Candidate]], int]:
    """Compile and check; those that are right, and how many calls each sample of theirs has."""
    bound: list[list[tuple[Implementation, _Bound]]] = []
    for run, inputs in runs:
        bound.append([])
        for implementation in implementations:
            on_step(f"compiling {implementation.label}")
            if reason := implementation.refuses(run.workload) or implementation.missing():
                run.fail(implementation, "unsupported", reason)
            elif call := run.attempt(implementation, partial(_bind, implementation, run.workload, inputs)):
                bound[-1].append((implementation, call))
    calls = _calls_per_sample([call.milliseconds for of_run in bound for _, call in of_run])
    # One graph is replayed at a time and reads nothing of another: they share the memory of what they write.
    pool = torch.cuda.graph_pool_handle()
    candidates = []
    for (run, inputs), of_run in zip(runs, bound, strict=True):
        candidates += _right(run, inputs, of_run, calls, pool, on_step)
    return candidates, calls


def _right(
    run: _Run,
    inputs: Inputs,
    bound: Sequence[tuple[Implementation, _Bound]],
    calls: int,
    pool: Any,
    on_step: Callable[[str], None],
) -> list[tuple[_Run, Candidate]]:
    """Those of a workload that are right. The results in float32 are gone when it returns: the next one's need room."""
    if not bound:
        return []
    on_step("computing in float32")
    try:
        expected = expected_of(run.workload, inputs)
    except torch.OutOfMemoryError:
        for implementation, _ in bound:
            run.fail(implementation, "oom", "the float32 reference does not fit in the GPU's memory")
        return []
    candidates = []
    for implementation, call in bound:
        on_step(f"checking {implementation.label}")
        check = partial(_check, implementation, call, calls, run.workload, expected, pool)
        if candidate := run.attempt(implementation, check):
            candidates.append((run, candidate))
    return candidates


def _time_all(
    candidates: Sequence[tuple[_Run, Candidate]], turns: Turns, rounds: int, on_step: Callable[[str], None]
) -> None:
    """Time them in turn, then single calls of each; their runs get the points."""
    timed = turns.timed([candidate for _, candidate in candidates], rounds, on_step)
    for _, candidate in candidates:
        candidate.graph.reset()  # a single call needs the memory once more
    for run, candidate in candidates:
        eager_ms = run.attempt(candidate.implementation, partial(_eager_ms, candidate.call, turns.flush))
        if eager_ms is not None:
            run.points[candidate.implementation.key] = _point(run, candidate, turns.calls, timed, eager_ms)


def _point(run: _Run, candidate: Candidate, calls: int, timed: Timed, eager_ms: float) -> MeasuredPoint:
    return MeasuredPoint(
        **run.fields(candidate.implementation),
        rel_error=candidate.rel_error,
        max_rel_error=max_rel_error(candidate.implementation, run.workload),
        peak_bytes=candidate.peak_bytes,
        lse_error=candidate.lse_error,
        samples_ms=candidate.samples_ms,
        calls_per_sample=calls,
        eager_ms=eager_ms,
        ceiling_tflops=CEILING_FLOPS / statistics.median(timed.ceiling_ms) / 1e9,
        timer=TIMER,
        settling=timed.settling,
        other_processes=timed.other_processes,
        idle_share=timed.idle_share,
        round_order=candidate.places,
        device_states=DeviceStates.of(timed.states),
        message=candidate.implementation.note(),
    )


def prepare_alone(
    implementation: Implementation, workload: Workload, inputs: Inputs, milliseconds: float
) -> tuple[Candidate, int]:
    """A graph of enough calls, one at least, for so many milliseconds, its output checked, and its FLOPs.

    Raises `MeasurementError` if the output is wrong.
    """
    bound = _bind(implementation, workload, inputs)
    calls = max(1, math.ceil(milliseconds / bound.milliseconds))
    try:
        candidate = _check(implementation, bound, calls, workload, expected_of(workload, inputs))
    except _WrongError as wrong:
        raise MeasurementError(f"{implementation.label} on {workload}: {wrong}") from None
    return candidate, calls * workload.flops


def check(implementation: Implementation, workload: Workload) -> float:
    """Run an implementation once on fresh inputs; its relative error. Raises `MeasurementError` if it is wrong."""
    candidate, _ = prepare_alone(implementation, workload, make_inputs(workload, seed=0), milliseconds=0.0)
    return candidate.rel_error


def check_on_cpu(implementation: Implementation, workload: Workload) -> float:
    """Compute a small workload on the CPU; its relative error. Raises `MeasurementError` if that is too large."""
    inputs = make_inputs(workload, seed=0, device_name="cpu")
    operands = inputs.q, inputs.k, inputs.v
    expected = expected_of(workload, inputs)
    if inputs.do is None:
        rel_error, _ = errors(implementation.forward(*operands, workload.causal, workload.sm_scale)(), expected)
    else:
        call = implementation.backward(*operands, inputs.do, workload.causal, workload.sm_scale)
        rel_error = gradient_error(call(), expected)
    if not rel_error <= max_rel_error(implementation, workload):
        raise MeasurementError(f"{implementation.label} on the CPU, {workload}: relative error {rel_error:.2e}")
    return rel_error


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
        capture_stream().wait_stream(torch.cuda.current_stream())  # on which the operands are made
        with torch.cuda.stream(capture_stream()):
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
    implementation: Implementation, bound: _Bound, calls: int, workload: Workload, expected: Exact, pool: Any = None
) -> Candidate:
    """Capture what will be timed, and check what that graph writes into a poisoned output."""
    graph, output = capture_graph(bound.call, calls, pool)
    for tensor in output:
        if tensor is not None:
            tensor.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    rel_error, lse_error = (gradient_error(output, expected), None) if workload.backward else errors(output, expected)
    limit = max_rel_error(implementation, workload)
    if not rel_error <= limit:  # a NaN is not within the limit
        raise _WrongError(f"relative error {rel_error:.2e} against float32 exceeds {limit:.2g}", rel_error)
    if lse_error is not None and not lse_error <= MAX_LSE_ERROR:
        raise _WrongError(f"log-sum-exp is off by {lse_error:.2e}, more than {MAX_LSE_ERROR:.0e}", rel_error)
    return Candidate(implementation, bound.call, graph, rel_error, lse_error, bound.peak_bytes)


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
