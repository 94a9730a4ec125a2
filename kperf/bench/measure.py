"""Correct first, then timed: one workload, all implementations in turn.

A sample is one replay of a CUDA graph of `calls_per_sample` calls, timed by events on the stream. The graph takes
Python's launch cost out; the L2 is flushed before each sample; and the flush, which the GPU is busy with while the
replay is queued, hides the launch of the graph itself. In every round all implementations take one sample each, in an
order that is shuffled a round, so that clock, power and temperature are shared fairly.
"""

import math
import secrets
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from scipy.stats import bootstrap

from kperf.attention.implementations import Call, Implementation, Output
from kperf.attention.workload import SweepName, Workload
from kperf.bench.points import FailedPoint, MeasuredPoint, Point
from kperf.errors import MeasurementError
from kperf.record import device
from kperf.record.store import DeviceState

TIMER = "cuda_graph_events"

MAX_REL_ERROR = {"bfloat16": 4e-3, "float16": 1e-3}
"""|o - ref| / |ref| against float32. Rounding p and o to bfloat16 (8 bits) alone gives about 2e-3."""

MAX_LSE_ERROR = 1e-3
"""Largest |lse - ref|: the scores themselves are sums of exact products in float32."""

_SAMPLE_MS = 0.5
_MAX_CALLS_PER_SAMPLE = 64
_EAGER_CALLS = 7
_FLUSH_BYTES = 256 << 20  # five times Hopper's 50 MB of L2
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
    samples_ms: list[float]
    places: list[int]


class _WrongError(Exception):
    """An implementation that runs and is wrong; carries its error."""

    def __init__(self, message: str, rel_error: float | None) -> None:
        super().__init__(message)
        self.rel_error = rel_error


def make_inputs(workload: Workload, seed: int, device_name: str = "cuda") -> Inputs:
    """Fresh normal inputs, and the reference in float32 by slices of one head, so that 16 x 16384 fits."""
    generator = torch.Generator(device=device_name).manual_seed(seed)
    dtype = getattr(torch, workload.dtype)
    q, k, v = (
        torch.randn(workload.shape, generator=generator, device=device_name, dtype=torch.float32).to(dtype)
        for _ in range(3)
    )
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


def measure(
    workload: Workload,
    implementations: Sequence[Implementation],
    *,
    figure: Literal["fig12", "bench"],
    sweep: SweepName,
    environment: str,
    rounds: int,
    on_step: Callable[[str], None] = lambda _: None,
) -> list[Point]:
    """Check and time all implementations on one workload; one point each, all of one run.

    An implementation that is unsupported, wrong, out of memory or raises gets a point that says so and no time; the
    others go on. Raises `MeasurementError` only if the GPU itself is lost.
    """
    seed = secrets.randbits(32)
    common: dict[str, Any] = {
        "figure": figure,
        "run": secrets.token_hex(6),
        "sweep": sweep,
        "flops": workload.flops,
        "environment": environment,
        **workload.model_dump(),
    }
    failed: dict[str, Point] = {}

    def fail(
        implementation: Implementation,
        status: Literal["wrong", "oom", "unsupported", "failed"],
        message: str,
        rel_error: float | None = None,
    ) -> None:
        if rel_error is not None and not math.isfinite(rel_error):
            rel_error = None
        failed[implementation.key] = FailedPoint(
            **common,
            implementation=implementation.key,
            override_sha256=_override_sha256(implementation, workload),
            status=status,
            message=message,
            rel_error=rel_error,
            recorded_at=device.now(),
        )

    try:
        inputs = make_inputs(workload, seed)
        ceiling = Ceiling()
        flush = torch.empty(_FLUSH_BYTES, dtype=torch.int8, device=inputs.q.device)
    except torch.OutOfMemoryError:
        for implementation in implementations:
            fail(implementation, "oom", "the inputs and the float32 reference do not fit in the GPU's memory")
        return [failed[implementation.key] for implementation in implementations]

    def attempt(implementation: Implementation, action: Callable[[], Any]) -> Any:
        """The action's result, or None and a point that says why there is none."""
        try:
            return action()
        except _WrongError as wrong:
            fail(implementation, "wrong", str(wrong), wrong.rel_error)
        except torch.OutOfMemoryError:
            fail(implementation, "oom", "the GPU's memory is too small for this implementation")
        except torch.AcceleratorError as error:
            message = f"{implementation.label} on {workload} broke the GPU's context: {_first_line(error)}"
            raise MeasurementError(message) from None
        except Exception as error:  # whatever a library raises is this implementation's failure, not the sweep's
            fail(implementation, "failed", _first_line(error))
        return None

    bound: list[tuple[Implementation, Call, float]] = []
    for implementation in implementations:
        on_step(f"compiling {implementation.label}")
        if reason := implementation.unsupported(workload) or implementation.missing():
            fail(implementation, "unsupported", reason)
        elif found := attempt(implementation, partial(_bind, implementation, workload, inputs)):
            bound.append((implementation, *found))
    calls = _calls_per_sample([milliseconds for *_, milliseconds in bound])
    candidates: list[Candidate] = []
    for implementation, call, _ in bound:
        on_step(f"checking {implementation.label}")
        if candidate := attempt(implementation, partial(_check, implementation, call, calls, workload, inputs)):
            candidates.append(candidate)

    states: list[DeviceState] = []
    order = np.random.default_rng(seed)
    for done in range(rounds if candidates else 0):
        on_step(f"round {done + 1} of {rounds}")
        states.append(_take_round(candidates, calls, ceiling, flush, order.permutation(len(candidates))))
    points: dict[str, Point] = {}
    for candidate in candidates:
        key = candidate.implementation.key
        eager_ms = attempt(candidate.implementation, partial(_eager_ms, candidate.call, flush))
        if eager_ms is None:
            continue
        median = statistics.median(candidate.samples_ms)
        points[key] = MeasuredPoint(
            **common,
            implementation=key,
            override_sha256=_override_sha256(candidate.implementation, workload),
            rel_error=candidate.rel_error,
            lse_error=candidate.lse_error,
            samples_ms=candidate.samples_ms,
            calls_per_sample=calls,
            median_ms=median,
            ci95_ms=median_interval(candidate.samples_ms),
            eager_ms=eager_ms,
            tflops=workload.flops / median / 1e9,
            ceiling_tflops=ceiling.tflops(),
            timer=TIMER,
            round_order=candidate.places,
            device_states=states,
            message=candidate.implementation.note(),
            recorded_at=device.now(),
        )
    points |= failed
    return [points[implementation.key] for implementation in implementations]


def median_interval(samples_ms: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval (percentile, 2000 resamples, fixed seed) of the median."""
    if len(set(samples_ms)) < 2:
        return samples_ms[0], samples_ms[0]
    interval = bootstrap(
        (np.asarray(samples_ms),), np.median, n_resamples=2000, method="percentile", rng=np.random.default_rng(0)
    ).confidence_interval
    return float(interval.low), float(interval.high)


class Ceiling:
    """cuBLAS bfloat16 8192^3, one product a sample: the practical ceiling, taken in turn with the others."""

    def __init__(self, products: int = 1) -> None:
        """Make the matrices and capture so many products in one graph."""
        self._a, self._b = (torch.randn(_CEILING_N, _CEILING_N, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        self._out = torch.empty_like(self._a)
        self._samples_ms: list[float] = []
        self.graph, _ = _capture(lambda: torch.mm(self._a, self._b, out=self._out), products)

    def sample(self, flush: torch.Tensor) -> Callable[[], None]:
        """Queue one sample; the returned function notes it once the GPU is done."""
        elapsed = _replay(self.graph, flush)
        return lambda: self._samples_ms.append(elapsed())

    def tflops(self) -> float | None:
        """Median of the samples so far."""
        return CEILING_FLOPS / statistics.median(self._samples_ms) / 1e9 if self._samples_ms else None


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
    graph, _ = _capture(call, 1)
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
    graph, output = _capture(call, calls)
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
    return Candidate(implementation, call, graph, rel_error, lse_error, [], [])


def _capture(call: Callable[[], Any], calls: int) -> tuple[torch.cuda.CUDAGraph, Any]:
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


def _take_round(
    candidates: Sequence[Candidate],
    calls: int,
    ceiling: Ceiling,
    flush: torch.Tensor,
    order: np.ndarray[Any, Any],
) -> DeviceState:
    """One sample of each candidate in the given order, and one of the ceiling; the GPU's state as it works."""
    finish = [ceiling.sample(flush)]
    for place, index in enumerate(order):
        candidate = candidates[index]
        elapsed = _replay(candidate.graph, flush)
        candidate.places.append(place)
        finish.append(lambda c=candidate, e=elapsed: c.samples_ms.append(e() / calls))  # type: ignore[misc]
    state = device.device_state()
    torch.cuda.synchronize()
    for note in finish:
        note()
    return state


def _replay(graph: torch.cuda.CUDAGraph, flush: torch.Tensor) -> Callable[[], float]:
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


def _override_sha256(implementation: Implementation, workload: Workload) -> str | None:
    if implementation.unsupported(workload):
        return None
    override = implementation.override(workload)
    return override.sha256 if override else None


def _first_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__
