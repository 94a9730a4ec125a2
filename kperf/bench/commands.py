"""One shape, checked and timed, with tritonbench's options."""

import tempfile
from pathlib import Path

from rich.console import Console

from kperf.attention.implementations import FIG12, implementations
from kperf.attention.workload import SweepName, Workload
from kperf.bench.points import Point, Store, newest_whole_runs
from kperf.bench.progress import sweep_progress
from kperf.bench.sweep import run_sweep
from kperf.bench.tables import METRICS, tritonbench_csv, tritonbench_table
from kperf.console import of_standard_error
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.record.store import gpu_slug


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
    """Check and time one shape, with `METRICS` as columns; appends the points below `results` if that is given.

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
        quiet = of_standard_error()
        with sweep_progress(quiet) as progress:
            run_sweep([[place]], chosen, store, figure="bench", rounds=rounds, fresh=True, progress=progress)
        run = newest_whole_runs(store.points(), [item.key for item in chosen])[place]
    if as_csv:
        print(tritonbench_csv([run], metrics), end="")
    else:
        console.print(tritonbench_table([run], metrics))
    fail_if_wrong([run])


def fail_if_wrong(runs: list[dict[str, Point]]) -> None:
    """Raise `MeasurementError` for the first point that is wrong or failed."""
    for run in runs:
        for point in run.values():
            if point.status in {"wrong", "failed"}:
                raise MeasurementError(f"{point.implementation} on {point.workload}: {point.message}")
