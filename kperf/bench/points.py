"""The records of one measured point and of one sustained run, and the choice of whole runs among them.

A point that is not "ok" cannot carry a time.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, Field, TypeAdapter, model_validator

from kperf.attention.workload import SweepName, Workload
from kperf.record.store import SCHEMA, DeviceState, Frozen, RecordStore

_Positive = Annotated[float, Field(gt=0)]


class _PointBase(Frozen):
    schema_version: int = SCHEMA
    figure: Literal["fig12", "bench"]
    run: str
    sweep: SweepName
    implementation: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    dtype: str
    flops: int
    override_sha256: str | None
    environment: str
    recorded_at: str
    message: str = ""

    @property
    def workload(self) -> Workload:
        """What was computed."""
        return _workload(self)

    @model_validator(mode="after")
    def _is_a_workload(self) -> Self:
        _workload(self)
        return self


class MeasuredPoint(_PointBase):
    """One implementation on one workload, right and timed.

    samples_ms: one time a round, a call's share of `calls_per_sample` CUDA-graph calls, L2 flushed before; median_ms
    and ci95_ms are theirs (bootstrap). eager_ms: median time of a single call without a graph, from Python to the
    GPU's end. rel_error: |o - ref| / |ref| against float32; lse_error: largest |lse - ref|. round_order: the place of
    this implementation in each round. ceiling_tflops: cuBLAS bfloat16 8192^3 taken in turn in the same rounds.
    """

    status: Literal["ok"] = "ok"
    rel_error: float
    lse_error: float | None
    samples_ms: Annotated[list[_Positive], Field(min_length=1)]
    calls_per_sample: int
    median_ms: _Positive
    ci95_ms: tuple[_Positive, _Positive]
    eager_ms: _Positive
    tflops: _Positive
    ceiling_tflops: _Positive | None
    timer: str
    round_order: list[int]
    device_states: list[DeviceState]


class FailedPoint(_PointBase):
    """One implementation on one workload without a time: `message` says why in one sentence."""

    status: Literal["wrong", "oom", "unsupported", "failed"]
    rel_error: float | None = None
    lse_error: None = None
    samples_ms: None = None
    median_ms: None = None
    ci95_ms: None = None
    eager_ms: None = None
    tflops: None = None
    timer: None = None
    round_order: None = None


Point = MeasuredPoint | FailedPoint


class PowerSample(Frozen):
    """One implementation alone for some seconds, means over its last half: rate, power, clock, heat."""

    tflops: _Positive
    power_w: _Positive
    sm_mhz: float
    temperature_c: float

    @property
    def tflops_per_watt(self) -> float:
        """Floating-point operations a picojoule."""
        return self.tflops / self.power_w


class PowerPoint(Frozen):
    """One implementation on one workload, alone and sustained: a sample a pass, all of one run taken in rotation.

    implementation `cublas` is the product of two bfloat16 8192 x 8192 matrices whatever the workload.
    """

    schema_version: int = SCHEMA
    figure: Literal["power"] = "power"
    run: str
    implementation: str
    batch: int
    heads: int
    seq_len: int
    head_dim: int
    causal: bool
    dtype: str
    seconds: float
    samples: Annotated[list[PowerSample], Field(min_length=1)]
    override_sha256: str | None
    environment: str
    recorded_at: str


_POINTS: TypeAdapter[Point] = TypeAdapter(Annotated[Point, Field(discriminator="status")])
_POWER_POINTS: TypeAdapter[PowerPoint] = TypeAdapter(PowerPoint)


class Store(RecordStore[Point]):
    """The points of Fig. 12, or of `bench`."""

    def __init__(self, folder: Path, name: str = "fig12") -> None:
        """In a folder of results/."""
        super().__init__(folder, name, _POINTS)


class PowerStore(RecordStore[PowerPoint]):
    """The sustained runs."""

    def __init__(self, folder: Path) -> None:
        """In a folder of results/."""
        super().__init__(folder, "power", _POWER_POINTS)


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
    runs: dict[tuple[Key, str], Run] = defaultdict(dict)
    for point in points:
        runs[(point.sweep, point.workload), point.run][point.implementation] = point
    fullest: dict[Key, Run] = {}
    most: dict[Key, int] = {}
    for (key, _), run in runs.items():  # in the order of writing: a later run replaces an earlier one
        count = len(run.keys() & {*wanted, *needed})
        if count and count >= most.get(key, 0) and run.keys() >= {*needed}:
            fullest[key], most[key] = run, count
    return fullest


def _workload(point: BaseModel) -> Workload:
    return Workload.model_validate({name: getattr(point, name) for name in Workload.model_fields})
