"""Each implementation alone and sustained: TFLOPS, clock, TFLOPS a watt. Reads results, writes PDF and PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.attention.implementations import FIG12
from kperf.bench.points import CUBLAS, PowerPoint, PowerSample
from kperf.plots.style import PAGE_WIDTH, SMALL, compact, footnote, grid, headline, label_and_look, save, value_above

_Value = Callable[[PowerSample], float]

PANELS: tuple[tuple[str, str, _Value], ...] = (
    ("TFLOPS", "{:.0f}", lambda sample: sample.tflops),
    ("SM clock (MHz)", "{:.0f}", lambda sample: sample.sm_mhz),
    ("TFLOPS a watt", "{:.2f}", lambda sample: sample.tflops_per_watt),
)
"""What is drawn, from top to bottom: its name, how its numbers are written, and how it is read from a sample."""


def draw(runs: Sequence[Sequence[PowerPoint]], stamp: str, notes: Sequence[str], out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(runs, stamp, notes), out)


def figure(runs: Sequence[Sequence[PowerPoint]], stamp: str, notes: Sequence[str]) -> Figure:
    """A panel each for `PANELS`, a group of bars a workload; whiskers span the passes. `notes` stand below."""
    made, axes = plt.subplots(len(PANELS), 1, figsize=(PAGE_WIDTH, 6.6), sharex=True, layout="constrained")
    for axis, (name, form, value) in zip(axes, PANELS, strict=True):
        _bars(axis, runs, form, value)
        axis.set_title(name, loc="left", fontsize=SMALL, fontweight="bold")
    axes[-1].set_xlabel("sequence length")
    first = runs[0][0]
    mask = "causal" if first.causal else "non-causal"
    title = f"Attention forward, {mask}, {first.dtype}, head_dim {first.head_dim}, 16 heads, batch {first.batch}"
    headline(made, [title, f"each alone and sustained, {stamp}"], *axes[0].get_legend_handles_labels())
    watts = [sample.power_w for run in runs for point in run for sample in point.samples]
    explained = (
        f"Median and range of {len(first.samples)} passes of {first.seconds:g} s each, in rotation, at "
        f"{min(watts):.0f} to {max(watts):.0f} W. At the power cap a kernel that takes less energy for a FLOP gets a "
        "higher clock, and one that does more in a cycle a lower one. TFLOPS a watt is FLOPs a picojoule."
    )
    footnote(made, [explained, *notes])
    return made


def _bars(axis: Axes, runs: Sequence[Sequence[PowerPoint]], form: str, value: _Value) -> None:
    keys = [key for key in (*FIG12, CUBLAS) if any(key == point.implementation for run in runs for point in run)]
    width = 0.88 / len(keys)
    top = 0.0
    for place, key in enumerate(keys):
        label, look = label_and_look(key)
        offset = (place - (len(keys) - 1) / 2) * width
        found = [
            (group + offset, [value(sample) for sample in point.samples])
            for group, run in enumerate(runs)
            for point in run
            if point.implementation == key
        ]
        middle = [float(np.median(values)) for _, values in found]
        low = [at - min(values) for at, (_, values) in zip(middle, found, strict=True)]
        high = [max(values) - at for at, (_, values) in zip(middle, found, strict=True)]
        axis.bar(
            [x for x, _ in found], middle, width, yerr=(low, high), label=label,
            error_kw={"elinewidth": 0.7, "capsize": 1, "ecolor": "black"},
            color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
        for at, (x, values) in zip(middle, found, strict=True):
            value_above(axis, x, max(values), form.format(at), upright=True)
            top = max(top, *values)
    axis.set_ylim(0, 1.2 * top)  # room for the numbers on the bars
    axis.set_xticks(range(len(runs)), [compact(run[0].seq_len) for run in runs])
    grid(axis)
