"""The records of one measured point and of one sustained run, and the choice of whole runs among them.

A point that is not "ok" cannot carry a time. A file holds what was measured; what follows from it (FLOPs, medians,
intervals, rates) is computed on reading. Points that were measured together share a line, in which the workload, the
environment and the timed rounds stand once. Samples stand as CUDA's timer gave them, in single precision and of all
calls of a sample: half as many digits.
"""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache, partial
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from kperf.arch import H200
from kperf.attention.workload import InputKind, SweepName, Workload
from kperf.bench import intervals
from kperf.record.store import DeviceStates, Frozen, Instant, Layout, RecordStore, a_line_each, first_of

Figure = Literal["fig12", "fig12_inputs", "bench", "tune", "attention"]
"""What a point was measured for."""

SCHEMA: Literal[4] = 4
"""Version of a file of points. In version 3 samples stand in double precision; both are read."""

MAX_REL_ERROR = {"bfloat16": 4e-3, "float16": 1e-3}
"""|o - ref| / |ref| against float32. Rounding p and o to bfloat16 (8 bits) alone gives about 2e-3."""

BACKWARD_ERROR = 2.5
"""As many times that limit holds for each of dq, dk and dv. They are made of one rounded matrix more, and where heads
of q share one of k and v, dk and dv may be sums of rounded ones: torch's FlashAttention-2 on a CPU is off by 3.6e-3 in
bfloat16, by 7.6e-3 where eight heads share one."""

MAX_LSE_ERROR = 1e-3
"""Largest |lse - ref|: the scores themselves are sums of exact products in float32."""

PEAK_TFLOPS = H200.peak_tflops("bf16")
"""What no Hopper GPU exceeds in dense bfloat16."""


_Positive = Annotated[float, Field(gt=0)]
_Rate = Annotated[float, Field(gt=0, le=PEAK_TFLOPS)]


_LOOSEST = 2e-2
"""What is further off is wrong whatever it was held to."""


class Settling(Frozen):
    """How the GPU was brought to a steady state before the timed rounds: see `bench.turns`.

    seconds: how long the mixture ran untimed; shift: by how much its last two windows differ, geometric mean over the
    implementations; settled: whether that is within the criterion, or time ran out.
    """

    seconds: float
    shift: float
    settled: bool


class _Together(Frozen):
    """What the points of one shape have in common that were measured together. run: their id."""

    figure: Figure
    run: str
    sweep: SweepName
    environment: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    dtype: str
    kv_heads: int | None = None
    backward: bool = False


class _Rounds(Frozen):
    """The timed rounds, in each of which every implementation took one sample.

    calls_per_sample: CUDA-graph calls in a sample. settling: what came before (None in records of unsettled rounds).
    ceiling_tflops: cuBLAS bfloat16 8192^3 taken in turn in the same rounds. other_processes: the most that used the GPU
    beside this one. idle_share: of the time of the rounds, what the GPU waited for this process between them (None in
    old records). device_states: the GPU in each round.
    """

    timer: str
    calls_per_sample: Annotated[int, Field(ge=1)]
    ceiling_tflops: _Rate | None
    settling: Settling | None = None
    other_processes: Annotated[int, Field(ge=0)] | None = None
    idle_share: Annotated[float, Field(ge=0, le=1)] | None = None
    device_states: DeviceStates


class _Own(Frozen):
    """What each point has of its own."""

    implementation: str
    inputs: InputKind = "normal"
    override_sha256: str | None = None
    recorded_at: Instant
    message: str = ""


class _Samples(_Own):
    """What was measured of an implementation that is right.

    samples_ms: one time a round, a call's share of `calls_per_sample` CUDA-graph calls, L2 flushed before. eager_ms:
    median time of a single call without a graph, from Python to the GPU's end. rel_error: |o - ref| / |ref| against
    float32, or the largest of those of dq, dk and dv; max_rel_error: what it was held to (None in old records, for
    which it was `MAX_REL_ERROR`); lse_error: largest |lse - ref| / max(|ref|, 1) (in old records
    |lse - ref|). peak_bytes: the most that torch's allocator held during one call beyond what it held before, of a
    backward pass with its forward pass (None in old records).
    round_order: the place of this implementation in each round.
    """

    status: Literal["ok"] = "ok"
    rel_error: Annotated[float, Field(ge=0)]
    max_rel_error: Annotated[float, Field(gt=0, le=_LOOSEST)] | None = None
    peak_bytes: Annotated[int, Field(ge=0)] | None = None
    lse_error: Annotated[float, Field(ge=0, le=MAX_LSE_ERROR)] | None = None
    samples_ms: Annotated[list[_Positive], Field(min_length=1)]
    eager_ms: _Positive
    round_order: list[int]


class _Failure(_Own):
    """Why there is no time, in one sentence: `message`."""

    status: Literal["wrong", "oom", "unsupported", "failed"]
    rel_error: float | None = None


class _OfAWorkload(_Together):
    @cached_property
    def workload(self) -> Workload:
        """What was computed."""
        return _workload(self)

    @property
    def flops(self) -> int:
        """Floating-point operations of a call."""
        return self.workload.flops

    @model_validator(mode="after")
    def _is_a_workload(self) -> Self:
        _ = self.workload
        return self


class MeasuredPoint(_OfAWorkload, _Rounds, _Samples):
    """One implementation on one workload, right and timed. What follows from its samples is computed."""

    @cached_property
    def median_ms(self) -> float:
        """Of the samples."""
        return statistics.median(self.samples_ms)

    @cached_property
    def ci95_ms(self) -> tuple[float, float]:
        """Where the median of a second run on the same card falls 19 times in 20 (`bench.intervals`).

        Unsettled rounds were not taken in blocks that lie apart: theirs are resampled one by one.
        """
        rule = intervals.bootstrap_interval if self.settling is None else intervals.median_interval
        return rule(self.samples_ms)

    @cached_property
    def half_shift(self) -> float:
        """Median of the second half of the rounds over that of the first, less 1."""
        return intervals.half_shift(self.samples_ms)

    @property
    def tflops(self) -> float:
        """Of the median."""
        return self.flops / self.median_ms / 1e9

    @property
    def shifts(self) -> bool:
        """Whether it had not settled: its halves differ by more than `intervals.SHIFT`."""
        return abs(self.half_shift) > intervals.SHIFT

    @model_validator(mode="after")
    def _is_right(self) -> Self:
        limit = self.max_rel_error or MAX_REL_ERROR[self.dtype]
        if self.rel_error > limit:
            raise ValueError(f"rel_error: {self.rel_error:.2g} is above {limit:g} and status is ok")
        return self

    @model_validator(mode="after")
    def _has_samples_of_its_rounds(self) -> Self:
        if not len(self.samples_ms) == len(self.round_order) == len(self.device_states):
            raise ValueError("samples_ms: not as many as round_order and device_states have")
        if self.settling is not None and intervals.blocks(len(self.samples_ms)) < 2:
            raise ValueError("samples_ms: an interval needs four rounds or more")
        if self.tflops > PEAK_TFLOPS:
            raise ValueError(f"samples_ms: {self.tflops:.6g} TFLOPS, more than the {PEAK_TFLOPS:.6g} of any Hopper GPU")
        return self


class FailedPoint(_OfAWorkload, _Failure):
    """One implementation on one workload without a time."""

    lse_error: None = None
    samples_ms: None = None
    median_ms: None = None
    ci95_ms: None = None
    eager_ms: None = None
    tflops: None = None
    timer: None = None
    round_order: None = None


Point = MeasuredPoint | FailedPoint


class PointsLine(_Together):
    """A line of a file of points: those of one shape that were measured together, `rounds` if any of them was timed."""

    schema_version: Literal[3, 4]
    rounds: _Rounds | None = None
    points: Annotated[list[dict[str, Any]], Field(min_length=1)]

    @classmethod
    def of(cls, points: Iterable[Point]) -> "Iterator[PointsLine]":
        """Lines of these points, in their order."""
        for together, alike in groupby(points, key=partial(_fields_of, _Together)):
            rounds: dict[str, Any] = {}
            own: list[dict[str, Any]] = []
            for point in alike:
                measured = isinstance(point, MeasuredPoint)
                its_rounds = _fields_of(_Rounds, point) if measured else rounds
                if rounds and its_rounds != rounds:
                    yield cls(schema_version=SCHEMA, **together, rounds=_Rounds(**rounds), points=own)
                    own = []
                rounds = its_rounds
                its_own = _fields_of(_Samples if measured else _Failure, point)
                if isinstance(point, MeasuredPoint) and (elapsed := _elapsed(point)):
                    its_own = its_own | {"samples_ms": None, "elapsed_ms": elapsed}
                own.append({name: value for name, value in its_own.items() if value is not None})
            yield cls(schema_version=SCHEMA, **together, rounds=_Rounds(**rounds) if rounds else None, points=own)

    @property
    def whole(self) -> list[Point]:
        """Each point with what it shares with the others.

        Raises ValueError for one that repeats what is shared, contradicts it, or has samples where there are no rounds.
        """
        together = _fields_of(_Together, self)
        rounds = _fields_of(_Rounds, self.rounds) if self.rounds else {}
        made = []
        for number, own in enumerate(self.points):
            shared = together | rounds if own.get("status") == "ok" else together
            if twice := sorted(shared.keys() & own.keys()):
                raise ValueError(f"points.{number}: {twice[0]}: stands in the line already")
            if own.keys() >= {"elapsed_ms", "samples_ms"}:
                raise ValueError(f"points.{number}: elapsed_ms: stands beside samples_ms")
            try:
                made.append(_POINT.validate_python(shared | self._with_samples(own)))
            except ValidationError as error:
                raise ValueError(f"points.{number}: {first_of(error)}") from None
        return made

    def _with_samples(self, own: dict[str, Any]) -> dict[str, Any]:
        if "elapsed_ms" not in own or self.rounds is None:
            return own
        elapsed = _Elapsed(elapsed_ms=own["elapsed_ms"]).elapsed_ms
        others = {name: value for name, value in own.items() if name != "elapsed_ms"}
        return others | {"samples_ms": _samples(elapsed, self.rounds.calls_per_sample)}


class _Elapsed(Frozen):
    """`elapsed_ms` of a stored point: milliseconds of all calls of each sample, in single precision."""

    elapsed_ms: Annotated[list[_Positive], Field(min_length=1)]


def _samples(elapsed_ms: Sequence[float], calls: int) -> list[float]:
    """Milliseconds of a call in each sample. A number beyond single precision becomes 0 or infinite, which is none."""
    with np.errstate(over="ignore", under="ignore"):
        single = np.asarray(elapsed_ms).astype(np.float32)
    samples: list[float] = (single.astype(np.float64) / calls).tolist()
    return samples


def _elapsed(point: MeasuredPoint) -> list[float] | None:
    """What a timer of single precision gave, in as few digits as are read back the same; None of another timer."""
    calls = point.calls_per_sample
    with np.errstate(over="ignore", under="ignore"):
        single = (np.asarray(point.samples_ms) * calls).astype(np.float32)
    elapsed = [float(str(ms)) for ms in single]
    return elapsed if _samples(elapsed, calls) == point.samples_ms else None


_POINT: TypeAdapter[Point] = TypeAdapter(Annotated[Point, Field(discriminator="status")])


def _fields_of(kind: type[BaseModel], record: BaseModel) -> dict[str, Any]:
    return {name: getattr(record, name) for name in kind.model_fields}


def _points_in(line: dict[str, Any]) -> list[Point]:
    return PointsLine.model_validate(line).whole


def _lines(points: Sequence[Point]) -> Iterator[str]:
    return (line.model_dump_json(exclude_none=True) for line in PointsLine.of(points))


POINTS: Layout[Point] = Layout(SCHEMA, _points_in, _lines)
"""Points that were measured together share a line."""


class PowerSample(Frozen):
    """One implementation alone for some seconds, means over its last half: rate, power, clock, heat.

    power_w: joules of the GPU's energy counter over the seconds between two of its steps (None in old records, whose
    watts are a mean of readings that repeat themselves).
    """

    tflops: _Rate
    power_w: _Positive
    sm_mhz: float
    temperature_c: float
    energy_j: _Positive | None = None
    energy_s: _Positive | None = None

    @property
    def tflops_per_watt(self) -> float:
        """Floating-point operations a picojoule."""
        return self.tflops / self.power_w


_POWER_SCHEMA: Literal[2] = 2

CUBLAS = "cublas"
"""Stands in the place of an implementation for cuBLAS's product, which is no attention."""


class PowerPoint(Frozen):
    """One implementation on one workload, alone and sustained: a sample a pass, all of one run taken in rotation.

    implementation `CUBLAS` is the product of two bfloat16 8192 x 8192 matrices whatever the workload.
    """

    schema_version: Literal[1, 2] = _POWER_SCHEMA
    figure: Literal["power"] = "power"
    run: str
    implementation: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    dtype: str
    inputs: InputKind = "normal"
    kv_heads: int | None = None
    backward: bool = False
    seconds: float
    samples: Annotated[list[PowerSample], Field(min_length=1)]
    other_processes: Annotated[int, Field(ge=0)] | None = None
    override_sha256: str | None
    environment: str
    recorded_at: Instant

    @cached_property
    def workload(self) -> Workload:
        """What was computed, of an implementation that is attention."""
        return _workload(self)

    @property
    def tflops(self) -> float:
        """Median over the passes."""
        return statistics.median(sample.tflops for sample in self.samples)

    @model_validator(mode="after")
    def _follows_from_its_samples(self) -> Self:
        _ = self.workload
        for sample in self.samples if self.schema_version > 1 else []:
            if sample.energy_j is None or sample.energy_s is None:
                raise ValueError("samples: energy_j or energy_s is missing")
            power_w = sample.energy_j / sample.energy_s
            if not math.isclose(sample.power_w, power_w, rel_tol=1e-9, abs_tol=1e-12):
                raise ValueError(f"power_w: {sample.power_w} contradicts its energy, from which it is {power_w:.9g}")
        return self


_POWER_POINTS: TypeAdapter[PowerPoint] = TypeAdapter(PowerPoint)


class Store(RecordStore[Point]):
    """The points of Fig. 12, of its kinds of inputs, or of `bench`."""

    def __init__(self, folder: Path, name: Figure = "fig12") -> None:
        """In a folder of results/."""
        super().__init__(folder, name, POINTS)


class PowerStore(RecordStore[PowerPoint]):
    """The sustained runs."""

    def __init__(self, folder: Path) -> None:
        """In a folder of results/."""
        super().__init__(folder, "power", a_line_each(_POWER_POINTS, _POWER_SCHEMA))


Key = tuple[SweepName, Workload]
"""One place of a figure: a workload that both sweeps have is measured, and drawn, in each."""


Run = dict[str, Point]
"""The points of one workload that were taken in turn, by implementation."""


def newest_whole_runs(points: Iterable[Point], implementations: Sequence[str]) -> dict[Key, Run]:
    """For each place of the figure the points of one run: the newest that has every one of `implementations`.

    Points of different runs are never mixed; a place without a whole run is left out.
    """
    return fullest_runs(points, implementations, implementations)


def fullest_runs(points: Iterable[Point], wanted: Sequence[str], needed: Sequence[str] = ()) -> dict[Key, Run]:
    """For each place of the figure the points of one run: the newest of those with the most of `wanted`.

    Only runs with every one of `needed` are looked at. So a run of some implementations never hides a whole one, and
    one that lacks an implementation is still found. A place without any such run is left out.
    """
    fullest: dict[Key, Run] = {}
    for key, runs in runs_by_place(points).items():
        most = 1
        for run in runs:  # a later run replaces an earlier one
            count = len(run.keys() & {*wanted, *needed})
            if count >= most and run.keys() >= {*needed}:
                fullest[key], most = run, count
    return fullest


def runs_by_place(points: Iterable[Point]) -> dict[Key, list[dict[str, Point]]]:
    """For each place of the figure its runs, in the order of writing: {implementation: point}."""
    runs: dict[Key, dict[str, dict[str, Point]]] = defaultdict(lambda: defaultdict(dict))
    for point in points:
        runs[point.sweep, point.workload][point.run][point.implementation] = point
    return {key: list(by_run.values()) for key, by_run in runs.items()}


_shape_of = attrgetter(*Workload.model_fields)


def _workload(point: BaseModel) -> Workload:
    return _made(*_shape_of(point))


@lru_cache(1024)
def _made(*fields: object) -> Workload:
    return Workload.model_validate(dict(zip(Workload.model_fields, fields, strict=True)))
