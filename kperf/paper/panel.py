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
from kperf.record.store import gpu_slug, recorded_folder


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
    fail_if_wrong(shown)
