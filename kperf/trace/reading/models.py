"""The record behind Fig. 11 (`<variant>.timeline.json`), and the two cycle models that are held against it.

Both models take the time of each stage of a consumer's trip as measured and predict the period. Barrier waits are not
stages: in a model they are consequences, and each counts with what it costs when it is over at once (5th percentile).

warp specialisation: the groups run beside each other and each is serial, so the slowest sets the pace:
    T = max over groups of the sum of its stages, and not less than the tensor core's time for all consumers.
software pipelining: besides, the products of one trip run under the arithmetic of another in the same group, so of
matrix-product time and arithmetic only the longer counts:
    T = max(tensor core's time, max over consumers of max(products, arithmetic) + what is neither).
"""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from kperf.errors import UsageError
from kperf.record.store import Environment
from kperf.trace.reading.analysis import RegionTime


class _Base(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class QuantilesRecord(_Base):
    """Cycles."""

    median: float
    p5: float
    p95: float


class RegionRecord(_Base):
    """A region of a warp group: cycles each time, share of the group's lifetime."""

    warp_group: str
    name: str
    kind: str
    cycles: QuantilesRecord
    share: float


class TensorCoreBusy(_Base):
    """How busy the tensor cores of an SM are.

    at_issue_rate: the cycles that the trip's products take at the peak rate (`bound_cycles`: all consumers', 4096 FLOP
    a cycle) over the period. in_flight: share of the time in which at least one wgmma is between its issue and the end
    of the wait for it, which counts queueing and latency too.
    """

    at_issue_rate: float
    in_flight: float
    bound_cycles: float


class SoftmaxRecord(_Base):
    """Cycles of arithmetic in a trip of a consumer, and those of them under wgmma in flight: its own, or anyone's."""

    cycles: float
    under_own_wgmma: float
    under_any_wgmma: float


class BubbleRecord(_Base):
    """Cycles of a trip with no wgmma in flight, by what the consumers do meanwhile."""

    cause: str
    cycles_per_iteration: float


class PathRecord(_Base):
    """A region's share of the critical path."""

    region: str
    warp_group: str
    share: float


class ModelRecord(_Base):
    """A model's period, and how far off the measured one it is: |cycles / period - 1|."""

    name: Literal["warp specialisation", "software pipelining"]
    cycles: float
    error: float


class FittedModel(ModelRecord):
    """The model of this kernel's schedule; `other` is the other one."""

    other: ModelRecord


class OverheadRecord(_Base):
    """Median time of the plain and of the traced kernel, launched in turn in one run."""

    plain_ms: float
    traced_ms: float
    ratio: float


class RecordCount(_Base):
    """Records of the launch."""

    written: int
    lost: int


class SassOrder(_Base):
    """The order of wgmma, waits, signals and exponentials in both kernels, and where they differ, in words."""

    plain: list[str]
    traced: list[str]
    same: bool
    differences: list[str]


class Timeline(_Base):
    """`results/<gpu>/fig11/<variant>.timeline.json`. Cycles are SM cycles at `clock_mhz`."""

    schema_version: Literal[1] = 1
    variant: str
    label: str
    workload: str
    environment: Environment
    override_sha256: str
    clock_mhz: float
    blocks: int
    iterations: int
    period_cycles: QuantilesRecord
    tile_boundary_cycles: QuantilesRecord | None = Field(
        default=None, description="of a persistent block: cycles from tile to tile beyond those from trip to trip"
    )
    regions: list[RegionRecord]
    lifetime_covered: float = Field(description="recorded cycles of a block over its lifetime by the global timer")
    tensor_core_busy: TensorCoreBusy
    softmax: SoftmaxRecord
    bubbles: list[BubbleRecord]
    critical_path: list[PathRecord]
    model: FittedModel
    overhead: OverheadRecord
    records: RecordCount
    sass_order: SassOrder


def read_timeline(text: str, source: str) -> Timeline:
    """Validate what was read from `source`; raises `UsageError` if it is not a timeline."""
    try:
        return Timeline.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise UsageError(f"{source} is not a timeline ({place}: {first['msg']}); record it again") from None


def models(
    regions: list[RegionTime], consumers: list[str], tensor_cycles: float, period: float, *, pipelined: bool
) -> FittedModel:
    """Both models from the stage times of a trip; `pipelined` says which is this schedule's."""
    serial = [sum(_stage(region) for region in regions if region.warp_group == group) for group in consumers]
    overlapped = []
    for group in consumers:
        mine = [region for region in regions if region.warp_group == group]
        products = sum(_stage(region) for region in mine if region.kind in ("tensor", "issue"))
        arithmetic = sum(_stage(region) for region in mine if region.kind == "arithmetic")
        neither = sum(_stage(region) for region in mine) - products - arithmetic
        overlapped.append(max(products, arithmetic) + neither)
    made = [
        _model("warp specialisation", max(tensor_cycles, *serial), period),
        _model("software pipelining", max(tensor_cycles, *overlapped), period),
    ]
    chosen, other = reversed(made) if pipelined else made
    return FittedModel(**chosen.model_dump(), other=other)


def _stage(region: RegionTime) -> float:
    """Cycles of a trip that a region takes, in a model."""
    if region.per_trip == 0:
        return 0.0
    return region.cycles.p5 if region.kind == "wait" else region.per_trip


def _model(name: Literal["warp specialisation", "software pipelining"], cycles: float, period: float) -> ModelRecord:
    return ModelRecord(name=name, cycles=cycles, error=abs(cycles / period - 1))
