"""The original's interface: one panel of Fig. 12 for some implementations."""

from pathlib import Path

from rich.console import Console

from kperf.attention.implementations import implementations
from kperf.attention.workload import SweepName
from kperf.bench.commands import fail_if_wrong
from kperf.bench.points import Store
from kperf.bench.tables import tritonbench_table
from kperf.errors import UsageError
from kperf.paper import fig12
from kperf.record import device
from kperf.record.store import gpu_slug


def run_panel(
    console: Console, results: Path, sweep: SweepName, keys: list[str], mode: fig12.Mode, *, rounds: int, fresh: bool
) -> None:
    """Measure one panel of a figure and print it; without a Hopper GPU print what is recorded, and say so.

    What was measured now is shown, and else the runs that the figure shows, if they have all of `keys`.

    Raises `UsageError` for an unknown implementation or if nothing is recorded, `MeasurementError` for a wrong point.
    """
    implementations(keys)
    reason = device.why_static()
    measured: set[str] = set()
    if reason is None:
        store = Store(results / gpu_slug(device.gpu_name()))
        begin = device.now()
        fig12.measure_fig12(console, store, mode, keys, sweeps=[sweep], rounds=rounds, fresh=fresh)
        measured = {point.run for point in store.points() if point.recorded_at >= begin}
        title = f"measured on {device.gpu_name()}"
    else:
        store = fig12.recorded_store(results, mode, keys)
        title = f"static: recorded in {store.folder.name}; {reason}"
    runs = fig12.figure_runs(store, mode, keys, measured)
    store.environments_of(point for run in runs.values() for point in run.values())
    shown = [{key: runs[place][key] for key in keys} for place in fig12.grid(mode, [sweep]) if place in runs]
    if not shown:
        raise UsageError(f"{store.points_path} has no run of {', '.join(keys)}: measure it on a Hopper GPU")
    console.print(tritonbench_table(shown, ["tflops", "latency"], title=title))
    for key in sorted(fig12.of_other_overrides(shown)):
        console.print(f"{key}: recorded with another override than the one in ttgir/{key}/")
    fail_if_wrong(shown)
