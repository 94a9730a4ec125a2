"""The original's interfaces: one panel for some implementations, and one shape with tritonbench's options."""

import tempfile
from pathlib import Path

from rich.console import Console

from kperf.attention.implementations import FIG12, implementations
from kperf.attention.workload import SweepName, Workload
from kperf.bench.sweep import run_sweep
from kperf.bench.tables import METRICS, tritonbench_csv, tritonbench_table
from kperf.errors import MeasurementError, UsageError
from kperf.paper import fig12
from kperf.record import device
from kperf.record.results import Point, Store, gpu_slug, newest_whole_runs, recorded_folder


def run_panel(
    console: Console, results: Path, sweep: SweepName, keys: list[str], mode: fig12.Mode, *, rounds: int, fresh: bool
) -> None:
    """Measure one panel of a figure and print it; without a Hopper GPU print what is recorded, and say so.

    Raises `UsageError` for an unknown implementation or if nothing is recorded, `MeasurementError` for a wrong point.
    """
    implementations(keys)
    reason = device.why_static()
    if reason is None:
        store = Store(results / gpu_slug(device.gpu_name()))
        fig12.measure_fig12(console, store, mode, keys, sweeps=[sweep], rounds=rounds, fresh=fresh)
        title = f"measured on {device.gpu_name()}"
    else:
        store = Store(recorded_folder(results))
        title = f"static: {reason}; recorded in {store.folder.name}"
    runs = fig12.figure_runs(store, mode, keys)
    shown = [{key: runs[place][key] for key in keys} for place in fig12.grid(mode, [sweep]) if place in runs]
    if not shown:
        raise UsageError(f"{store.points_path} has no run of {', '.join(keys)}: measure it on a Hopper GPU")
    console.print(tritonbench_table(shown, ["tflops", "latency"], title=title))
    _fail_if_wrong(shown)


def run_one(
    console: Console,
    workload: Workload,
    keys: list[str] | None,
    metrics: list[str],
    *,
    as_csv: bool,
    rounds: int,
    results: Path | None,
) -> None:
    """Check and time one shape, with `report.METRICS` as columns; appends the points below `results` if that is given.

    Raises `UsageError` for an unknown metric or implementation or without a Hopper GPU, `MeasurementError` for a wrong
    point.
    """
    for name in metrics:
        if name not in METRICS:
            raise UsageError(f"unknown metric {name!r}: choose from {', '.join(METRICS)}")
    chosen = implementations(keys or [item.key for item in implementations(FIG12) if not item.unsupported(workload)])
    if reason := device.why_static():
        raise UsageError(f"bench measures, and {reason}")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch) if results is None else results / gpu_slug(device.gpu_name())
        store = Store(folder, "bench")
        place: tuple[SweepName, Workload] = ("seq_len", workload)
        quiet = Console(stderr=True)
        with fig12.sweep_progress(quiet) as progress:
            run_sweep([place], chosen, store, figure="bench", rounds=rounds, fresh=True, progress=progress)
        run = newest_whole_runs(store.points(), [item.key for item in chosen])[place]
    if as_csv:
        print(tritonbench_csv([run], metrics), end="")
    else:
        console.print(tritonbench_table([run], metrics))
    _fail_if_wrong([run])


def _fail_if_wrong(runs: list[dict[str, Point]]) -> None:
    for run in runs:
        for point in run.values():
            if point.status in {"wrong", "failed"}:
                raise MeasurementError(f"{point.implementation} on {point.workload}: {point.message}")
