"""`make overhead`: choices of the variants measured on a Hopper GPU; told and drawn with what timelines hold."""

import functools
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console

from kperf.attention.workload import FIG11
from kperf.console import announce
from kperf.paper import fig11, instrumented
from kperf.plots import overhead as plot
from kperf.record import device
from kperf.record.store import recorded_folder
from kperf.studies import fig13, models, overhead
from kperf.studies.records import Common, measured_or_recorded


def run(console: Console, results: Path, *, rounds: int, require_gpu: bool) -> None:
    """Measure, and show what tracing costs every recorded kernel; without a GPU what is recorded.

    Raises `UsageError` if nothing is recorded, `MeasurementError` if the GPU is lost.
    """
    if device.why_static() is None or require_gpu:
        measure_here = functools.partial(measure, console, rounds=rounds)
        folder = measured_or_recorded(
            console, results, "overhead", fig13.ROWS, measure_here, require_gpu=require_gpu
        ).folder
    else:
        console.print(f"static: drawn from recorded runs; {device.why_static()}")
        folder = recorded_folder(results, f"fig11/{fig11.VARIANTS[0]}.timeline.json")
    report(console, folder)


def report(console: Console, folder: Path) -> list[Path]:
    """Print and draw what is recorded in the folder; returns the figure's files."""
    costs, choices = fig13.kernel_costs(folder), fig13.choices(folder)
    stamp = models.stamp(folder)
    console.print(fig13.table(costs, stamp))
    for name, found in choices.items():
        console.print(overhead.table(found, name))
    for line in fig13.sentences(folder, costs):
        console.print(line)
    return announce(console, plot.draw(costs, choices, stamp, folder / "overhead"), stamp)


def measure(console: Console, common: Common, *, rounds: int) -> Iterator[fig13.ChoiceRow]:
    """Every choice of each variant of Fig. 11, in turn with the original kernel."""
    inputs = fig11.normal_qkv(FIG11)
    for name in fig11.VARIANTS:
        item = fig11.subject(name)
        bind = functools.partial(fig11.bind, item.original, inputs, FIG11)
        for taken in overhead.take(console, instrumented.subject_of(item.original), item.traced, bind, rounds):
            yield fig13.row(common, name, taken)
