"""`make accuracy`: our clock inside of kernels against cycles that are known, against CUPTI, and models against both.

Every kernel of `known` is traced as `kperf trace` traces a script's: its third launch is replaced by the instrumented
kernel. How long a region lasts on the timeline is held against the cycles of the work in it; as records cost cycles
themselves, it is a line, `measured = slope * known + offset`: the slope says how right the clock is, the offset what
two records add. The time of the whole launch by its records (cycles of all intervals of a CTA, over the SM's clock)
is held against CUPTI's time of the same launch.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, TypeAdapter
from rich.console import Console
from rich.table import Table

from kperf.console import announce, titled_table
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import RecordStore, recorded_folder
from kperf.studies import cupti, models
from kperf.studies.known import KNOWN, MARK, Known
from kperf.studies.models import PAPER_TABLE_5, Prediction, predictions
from kperf.studies.records import Common, Row, Run, measured_or_recorded, newest
from kperf.trace.analyze.timeline import Launch
from kperf.trace.capture.gpu import Gpu
from kperf.trace.capture.interceptor import Interceptor
from kperf.trace.capture.kernels import WARM, TraceOptions
from kperf.trace.instrument.events import Rule, read_rules
from kperf.trace.results import decoded

GOALS = {"region": 0.01, "launch": 0.01, "model": 0.03}
"""What errors should stay within: of slopes, of a launch's time, of the graph's and the stages' iteration times."""

ITERATIONS = 500
"""Of the kernels' loops: some milliseconds at 16384 cycles an iteration, and records that fit into shared memory."""

_KNOWN_WORK = "known work"
_PRODUCTS = "a @ b wait"
_known = read_rules()
RULES = _known.model_copy(
    update={
        "rule": (
            Rule(
                operation="tt.elementwise_inline_asm", pattern=MARK, region=_KNOWN_WORK, kind="arithmetic", record=True
            ),
            *_known.rule,
        )
    }
)
"""What is recorded of any kernel, and the work that is known."""


class RegionRow(Row):
    """A region of known cycles on the timeline. Cycles; quantiles over all iterations but the first of all CTAs."""

    what: Literal["region"] = "region"
    instruction: str
    steps: int
    known_cycles: Annotated[float, Field(gt=0)]
    measured_cycles: Annotated[float, Field(gt=0)]
    p5: float
    p95: float
    samples: int


class LaunchRow(Row):
    """A traced launch. Microseconds: of a CTA by its records (mean of all CTAs), from the first CTA's begin to
    the last one's end by the CTAs' global timers, and by CUPTI.
    """

    what: Literal["launch"] = "launch"
    instruction: str
    regions_us: Annotated[float, Field(gt=0)]
    span_us: Annotated[float, Field(gt=0)]
    cupti_us: Annotated[float, Field(gt=0)]

    @property
    def error(self) -> float:
        """Of the time by records, with its sign."""
        return self.regions_us / self.cupti_us - 1


AccuracyRow = RegionRow | LaunchRow
ROWS: TypeAdapter[AccuracyRow] = TypeAdapter(Annotated[AccuracyRow, Field(discriminator="what")])
Draw = Callable[[Sequence[AccuracyRow], Sequence[Prediction], str, Path], list[Path]]


@dataclass(frozen=True)
class Line:
    """measured = slope * known + offset, through the regions of one instruction, each with the same relative weight."""

    instruction: str
    slope: float
    offset: float

    @property
    def error(self) -> float:
        """Of the clock, with its sign."""
        return self.slope - 1


def lines(rows: Sequence[AccuracyRow]) -> list[Line]:
    """A line for each instruction with two regions of different length or more."""
    made = []
    regions = [row for row in rows if isinstance(row, RegionRow)]
    for instruction in dict.fromkeys(row.instruction for row in regions):
        measured = [row for row in regions if row.instruction == instruction]
        known = np.array([row.known_cycles for row in measured])
        if len(set(known)) > 1:
            slope, offset = np.polyfit(known, [row.measured_cycles for row in measured], 1)
            made.append(Line(instruction, float(slope), float(offset)))
    return made


def run(console: Console, results: Path, draw: Draw, *, require_gpu: bool) -> None:
    """Measure, or read what is recorded; tell and draw it beside the models, which need recorded timelines alone.

    Raises `UsageError` where nothing at all is recorded, `MeasurementError` for a kernel that is wrong.
    """
    measured: Run[AccuracyRow] | None = None
    why = ""
    try:
        measured = measured_or_recorded(console, results, "accuracy", ROWS, measure, require_gpu=require_gpu)
    except UsageError as error:
        if require_gpu or list(results.glob("*/accuracy.jsonl")):
            raise
        why = str(error)
    folder = measured.folder if measured else recorded_folder(results, "fig11/vanilla.timeline.json")
    report(console, folder, measured, draw, why)


def report(console: Console, folder: Path, measured: Run[AccuracyRow] | None, draw: Draw, why: str = "") -> list[Path]:
    """Print and draw the models, and beside them what was measured or `why` nothing was; returns the figure's files."""
    modelled = predictions(folder)
    stamp = measured.stamp if measured else f"{models.stamp(folder)}; of regions and launches nothing is recorded"
    rows = measured.rows if measured else []
    if why:
        console.print(why)
    else:
        for table in tables(rows, stamp):
            console.print(table)
    console.print(model_table(modelled))
    for sentence in [*sentences(rows, modelled), PAPER_TABLE_5]:
        console.print(sentence)
    return announce(console, draw(rows, modelled, stamp, folder / "accuracy"), stamp)


def measure(common: Common, gpu: Gpu | None = None) -> Iterator[AccuracyRow]:
    """Trace every known kernel at each of its lengths; of the longest also what CUPTI says."""
    for known in KNOWN:
        for steps in known.steps:
            cycles, launch, cupti_us = _trace(known, steps, gpu or Gpu())
            regions, iterations = region_cycles(launch, _KNOWN_WORK if known.region else _PRODUCTS)
            taken = regions if known.region else iterations
            yield RegionRow(
                **common,
                instruction=known.instruction,
                steps=steps,
                known_cycles=cycles,
                measured_cycles=float(np.median(taken)),
                p5=float(np.percentile(taken, 5)),
                p95=float(np.percentile(taken, 95)),
                samples=len(taken),
            )
        yield _launch_row(common, known, launch, cupti_us)


def _trace(known: Known, steps: int, gpu: Gpu) -> tuple[float, Launch, float]:
    """The cycles of an iteration as known, the records of a launch, and its microseconds by CUPTI."""
    ctas = device.sm_count()
    with Interceptor(TraceOptions((known.kernel,), passes=1, ctas="all"), RULES, gpu, lambda _: None) as launches:
        for _ in range(WARM - 1):
            known.launch(steps, ctas, ITERATIONS)
        cycles: list[float] = []
        times = cupti.kernel_times(lambda: cycles.append(known.launch(steps, ctas, ITERATIONS)))
        (kernel,) = launches.scheduler.chosen
        taken = kernel.taken
    if taken is None:
        raise kernel.problem or MeasurementError(f"{known.kernel} was not traced")
    own = [microseconds for name, microseconds in times if name == known.kernel]
    if len(own) != 1:
        raise MeasurementError(f"CUPTI saw {len(own)} launches of {known.kernel} where there was one")
    return cycles[0], decoded(taken), own[0]


def region_cycles(launch: Launch, name: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Of each iteration but a CTA's first, by the first recorded warp: cycles of region `name`, and from end to end.

    A CTA's first iteration is left out: its instructions come from memory. Raises `UsageError` if there is no such
    region, or events of it were lost.
    """
    events = launch.events
    numbers = [scope.number for scope in launch.program.scopes if scope.name == name]
    of_region = np.isin(events.scope, numbers) & (events.warp == 0)
    starts, ends = (np.flatnonzero(of_region & (events.is_start == start)) for start in (True, False))
    if not numbers or events.lost or len(starts) != len(ends) or len(starts) < 2:
        raise UsageError(f"the trace of {launch.program.kernel_name} has not every {name}")
    later = events.cta[ends[1:]] == events.cta[ends[:-1]]
    regions = (events.cycle[ends] - events.cycle[starts])[1:][later]
    iterations = np.diff(events.cycle[ends])[later]
    return regions, iterations


def _launch_row(common: Common, known: Known, launch: Launch, cupti_us: float) -> LaunchRow:
    first, last = launch.lifetimes
    timers = launch.events
    return LaunchRow(
        **common,
        instruction=known.instruction,
        regions_us=float((last - first).mean()) / launch.clock_mhz(),
        span_us=float(timers.end_ns.max() - timers.start_ns.min()) / 1e3,
        cupti_us=cupti_us,
    )


def tables(rows: Sequence[AccuracyRow], stamp: str) -> list[Table]:
    """Regions against known cycles, and launches against CUPTI."""
    fits = {line.instruction: line for line in lines(rows)}
    regions_of = ("work", "steps", "known", "measured", "5 % to 95 %", "error")
    regions = titled_table(f"regions of known cycles; {stamp}", *regions_of, left={"work"})
    launches_of = ("work", "events us", "span us", "CUPTI us", "error")
    launches = titled_table(f"a launch by its events and by CUPTI; {stamp}", *launches_of, left={"work"})
    for row in rows:
        if isinstance(row, RegionRow):
            error = f"{row.measured_cycles / row.known_cycles - 1:+.1%}"
            cells = (f"{row.known_cycles:.0f}", f"{row.measured_cycles:.0f}", f"{row.p5:.0f} to {row.p95:.0f}", error)
            regions.add_row(row.instruction, str(row.steps), *cells)
        else:
            times = (f"{value:.1f}" for value in (row.regions_us, row.span_us, row.cupti_us))
            launches.add_row(row.instruction, *times, f"{row.error:+.2%}")
    slopes = titled_table("measured = slope x known + offset", "work", "slope", "offset, cycles", left={"work"})
    for line in fits.values():
        slopes.add_row(line.instruction, f"{line.slope:.4f}", f"{line.offset:.1f}")
    return [regions, slopes, launches]


def model_table(modelled: Sequence[Prediction]) -> Table:
    """Every model's iteration time beside the measured one."""
    headers = ("kernel", "model", "from", "predicted", "measured", "error")
    title = "models of recorded kernels, cycles of an iteration"
    table = titled_table(title, *headers, left={"kernel", "model", "from"})
    for row in modelled:
        cells = (row.kernel, row.model, row.source, f"{row.predicted:.0f}", f"{row.measured:.0f}", f"{row.error:+.1%}")
        table.add_row(*cells)
    return table


def sentences(rows: Sequence[AccuracyRow], modelled: Sequence[Prediction]) -> list[str]:
    """What the numbers come to, a sentence each, with the goal that is met or missed."""
    printed = []
    for subject, errors, goal in (
        ("The slope of regions", {line.instruction: line.error for line in lines(rows)}, "region"),
        (
            "The time of launches by events",
            {r.instruction: r.error for r in rows if isinstance(r, LaunchRow)},
            "launch",
        ),
        ("The replay's iteration time", _errors(modelled, "graph"), "model"),
        ("The iteration time from another schedule's stage times", _errors(modelled, "stages"), "model"),
    ):
        if errors:
            worst = max(errors, key=lambda name: abs(errors[name]))
            over = [name for name, error in errors.items() if abs(error) > GOALS[goal]]
            held = "all of them" if not over else f"all but {', '.join(over)}"
            printed.append(
                f"{subject} is off by {np.mean(np.abs([*errors.values()])):.1%} on average over {len(errors)}, "
                f"{errors[worst]:+.1%} at worst ({worst}): {held} within {GOALS[goal]:.0%}."
            )
    return printed


def _errors(modelled: Sequence[Prediction], model: str) -> dict[str, float]:
    return {prediction.kernel: prediction.error for prediction in modelled if prediction.model == model}


def summary(folder: Path) -> Summary:
    """For the table of claims: the largest errors of slopes and of launches, as far as there are records."""
    store = RecordStore(folder, "accuracy", ROWS)
    rows = newest(store.points())
    errors = {
        "slope": [line.error for line in lines(rows)],
        "launch": [row.error for row in rows if isinstance(row, LaunchRow)],
    }
    numbers = {name: max(map(abs, values)) for name, values in errors.items() if values}
    return Summary(numbers, Provenance.of_records(store, rows))
