"""Each implementation alone and sustained, from end to end: measure where there is a Hopper GPU, tell, draw."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from kperf.attention.implementations import implementations
from kperf.bench.points import PowerPoint, PowerStore
from kperf.bench.power import measure
from kperf.errors import MeasurementError, UsageError
from kperf.record import device
from kperf.record.store import gpu_slug, recorded_folder
from plots import power as plot


def run(
    console: Console, results: Path, keys: Sequence[str] | None, *, causal: bool, seconds: float, passes: int
) -> None:
    """`make power`: measure where there is a Hopper GPU, else show what is recorded; `seconds` a turn, `passes` turns.

    Raises `UsageError` for an unknown implementation or a record that is missing or broken, `MeasurementError` if an
    implementation is wrong or the GPU is lost.
    """
    implementations(keys or ())  # an unknown key is a mistake without a GPU too
    reason = device.why_static()
    if reason is None:
        store = PowerStore(results / gpu_slug(device.gpu_name()))
        try:
            measure(console, store, keys, causal=causal, seconds=seconds, passes=passes)
        except torch.AcceleratorError as error:
            raise MeasurementError(f"the GPU's context broke: {str(error).splitlines()[0]}") from None
    else:
        console.print(f"static: {reason}; drawn from recorded runs")
        store = PowerStore(recorded_folder(results, "power.jsonl"))
    points = newest_runs(store.points(), causal, keys)
    if not points:
        raise UsageError(f"{store.points_path} has no such run: measure it on a Hopper GPU")
    environments = store.environments()
    missing = {p.environment for run in points for p in run} - environments.keys()
    if missing:
        raise UsageError(f"{store.environments_path} lacks the environment {min(missing)}: restore it")
    gpu = ", ".join(sorted({environments[p.environment].gpu for run in points for p in run}))
    stamp = f"{'measured' if reason is None else 'recorded'} on {gpu}, {points[0][0].recorded_at[:10]}"
    console.print(table(points, stamp))
    for path in plot.draw(points, stamp, store.folder / ("power_causal" if causal else "power")):
        console.print(f"drawn: {path} ({stamp})")


def newest_runs(
    points: Sequence[PowerPoint], causal: bool, keys: Sequence[str] | None = None
) -> list[list[PowerPoint]]:
    """For each workload, in the order of seq_len, the newest run that has all of `keys`: these of it, and cuBLAS.

    Without keys: the newest of the runs with the most implementations, so that a partial one does not hide a whole one.
    """
    runs: dict[int, dict[str, dict[str, PowerPoint]]] = {}
    for point in points:
        if point.causal == causal:
            runs.setdefault(point.seq_len, {}).setdefault(point.run, {})[point.implementation] = point
    newest = []
    for seq_len in sorted(runs):
        found = [run for run in runs[seq_len].values() if keys is None or all(key in run for key in keys)]
        if found:
            most = max(len(run) for run in found) if keys is None else 0
            run = [run for run in found if len(run) >= most][-1]
            newest.append([p for key, p in run.items() if keys is None or key in (*keys, "cublas")])
    return newest


def table(runs: Sequence[Sequence[PowerPoint]], title: str) -> Table:
    """Medians over the passes: TFLOPS alone, watts, MHz, and TFLOPS a watt."""
    mask = "causal" if runs[0][0].causal else "non-causal"
    made = Table(title=f"alone and sustained, {mask}, median of the passes; {title}", title_justify="left")
    for column in ("batch x seq_len", "implementation", "TFLOPS", "range", "W", "MHz", "C", "TFLOPS/W"):
        made.add_column(column, justify="right")
    for run in runs:
        for p in run:
            rates = [sample.tflops for sample in p.samples]
            middle = {
                name: float(np.median([getattr(sample, name) for sample in p.samples]))
                for name in ("tflops", "power_w", "sm_mhz", "temperature_c", "tflops_per_watt")
            }
            made.add_row(
                f"{p.batch} x {p.seq_len}",
                p.implementation,
                f"{middle['tflops']:.0f}",
                f"{min(rates):.0f} to {max(rates):.0f}",
                f"{middle['power_w']:.0f}",
                f"{middle['sm_mhz']:.0f}",
                f"{middle['temperature_c']:.0f}",
                f"{middle['tflops_per_watt']:.3f}",
            )
        made.add_section()
    return made
