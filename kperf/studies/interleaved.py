"""Rows of calls that are timed interleaved: each a CUDA graph of one call, which is right before it is timed."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal, Self, TypeVar

import torch
from pydantic import Field, model_validator
from rich.console import Console
from rich.table import Table

from kperf.bench.intervals import around, median_interval, ratio_spread
from kperf.bench.points import Settling
from kperf.bench.turns import capture_graph, time_in_turn
from kperf.errors import UsageError, first_line
from kperf.record.store import DeviceStates
from kperf.studies.records import Row, Run

Tensor = torch.Tensor
Call = Callable[[], tuple[Tensor, ...]]
Error = Annotated[float, Field(ge=0)]


class TimedRow(Row):
    """A call of one implementation. samples_ms: a call, of each round; or `message` says why there is none.

    error: of the output against float32, relative, over all elements. places: in the order of each round; ceiling_ms:
    cuBLAS bfloat16 8192^3 interleaved with them; device_states, other_processes (on the GPU), idle_share (None in old
    records), settling: as in the points of Fig. 12.
    """

    implementation: str
    status: Literal["ok", "wrong", "unsupported", "failed"]
    error: Error | None = None
    samples_ms: tuple[Annotated[float, Field(gt=0)], ...] = ()
    places: tuple[int, ...] = ()
    ceiling_ms: tuple[Annotated[float, Field(gt=0)], ...] = ()
    device_states: DeviceStates | None = None
    settling: Settling | None = None
    other_processes: int = 0
    idle_share: Annotated[float, Field(ge=0, le=1)] | None = None
    message: str = ""

    @property
    def median_ms(self) -> float | None:
        """Of the samples, None without."""
        return statistics.median(self.samples_ms) if self.samples_ms else None

    @property
    def ci95_ms(self) -> tuple[float, float] | None:
        """Where the median of a second run falls 19 times in 20."""
        return median_interval(self.samples_ms) if self.samples_ms else None

    @model_validator(mode="after")
    def _has_samples_that_are_right_or_a_reason(self) -> Self:
        if not (self.status == "ok") == bool(self.samples_ms) == (not self.message):
            raise ValueError("samples_ms: samples of what is ok, or a message, and not both")
        states = self.device_states or ()
        if not len(self.samples_ms) == len(self.places) == len(self.ceiling_ms) == len(states):
            raise ValueError("samples_ms: a round has a sample, a place, a ceiling and a state of the GPU each")
        if self.samples_ms and self.error is None:
            raise ValueError("error: of the output of what has samples")
        return self


T = TypeVar("T", bound=TimedRow)


def show(
    console: Console,
    run: Run[T],
    table: Callable[[Sequence[T], str], Table],
    sentences: Callable[[Sequence[T]], list[str]],
) -> T | None:
    """Print a run as a table with sentences below; returns the first row that is wrong or failed."""
    console.print(table(run.rows, run.stamp))
    for line in sentences(run.rows):
        console.print(line)
    return next((row for row in run.rows if row.status in {"wrong", "failed"}), None)


@dataclass(frozen=True)
class Candidate:
    """What may be timed. fields: those of its row that name it.

    make: the call, or raises `UsageError` where there is none. check: the errors of its output, as fields of the row,
    or raises `WrongError`.
    """

    fields: Mapping[str, Any]
    make: Callable[[], Call]
    check: Callable[[Sequence[Tensor]], Mapping[str, float | None]]


class WrongError(Exception):
    """A call that runs and is wrong; `errors`: fields of its row, those that a record may have."""

    def __init__(self, message: str, **errors: float | None) -> None:
        """`message`: one sentence."""
        super().__init__(message)
        self.errors = {name: value for name, value in errors.items() if value is not None and math.isfinite(value)}


@dataclass
class _Right:
    """A right call, as `time_in_turn` takes it; `call` keeps alive what the graph reads."""

    fields: Mapping[str, Any]
    call: Call
    graph: torch.cuda.CUDAGraph
    errors: Mapping[str, float | None]
    samples_ms: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)


def timed(row: type[T], candidates: Sequence[Candidate], rounds: int) -> Iterator[T]:
    """A row for each candidate: of those that are right, which are timed interleaved, and then of the others.

    Raises `torch.AcceleratorError` where the GPU's context is broken.
    """
    right: list[_Right] = []
    without_time: list[T] = []
    for candidate in candidates:
        try:
            right.append(_prepared(candidate))
        except torch.AcceleratorError:
            raise
        except Exception as error:  # whatever a compiler or a library raises is this candidate's failure
            without_time.append(row(**candidate.fields, **_reason(error)))
    if right:
        rounds_taken = time_in_turn(right, rounds)
    for prepared in right:
        yield row(
            **prepared.fields,
            **prepared.errors,
            status="ok",
            samples_ms=tuple(prepared.samples_ms),
            places=tuple(prepared.places),
            ceiling_ms=tuple(rounds_taken.ceiling_ms),
            device_states=DeviceStates.of(rounds_taken.states),
            settling=rounds_taken.settling,
            other_processes=rounds_taken.other_processes,
            idle_share=rounds_taken.idle_share,
        )
    yield from without_time


def _prepared(candidate: Candidate) -> _Right:
    """Capture a call, and check what the graph writes into poisoned memory."""
    call = candidate.make()
    graph, output = capture_graph(call, 1)
    for tensor in output:
        tensor.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    return _Right(candidate.fields, call, graph, candidate.check(output))


def _reason(error: Exception) -> dict[str, Any]:
    """Fields of the row of a call without a time."""
    message = first_line(error)[:200]
    if isinstance(error, WrongError):
        return {"status": "wrong", "message": message, **error.errors}
    return {"status": "unsupported" if isinstance(error, UsageError) else "failed", "message": message}


def relative_error(computed: Tensor, exact: Tensor) -> float:
    """|found - exact| / |exact| over all elements; not a number where one is not."""
    return float((computed.float() - exact).norm() / exact.norm())


def speedup(ours: TimedRow, theirs: TimedRow) -> tuple[float, float, float]:
    """Of a call, with the 95 % interval in which a second run's lies. Both have samples of the same rounds."""
    ratio = statistics.median(theirs.samples_ms) / statistics.median(ours.samples_ms)
    return ratio, *around(ratio, ratio_spread(ours.samples_ms, theirs.samples_ms))
