"""TFLOPS and TFLOPS a watt, each implementation alone and sustained. Reads results, writes PDF and PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from kperf.attention.implementations import FIG12
from kperf.bench.points import PowerPoint, PowerSample
from plots.style import CUBLAS, label_and_look, save


def draw(runs: Sequence[Sequence[PowerPoint]], stamp: str, notes: Sequence[str], out: Path) -> list[Path]:
    """Two panels of grouped bars, a group a workload; whiskers span the passes. Returns the files written."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained")
    _bars(axes[0], runs, lambda sample: sample.tflops)
    axes[0].set_ylabel("TFLOPS, alone and sustained")
    _bars(axes[1], runs, lambda sample: sample.tflops_per_watt)
    axes[1].set_ylabel("TFLOPS a watt")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=5, loc="outside upper center", frameon=False, handlelength=1.4)
    first = runs[0][0]
    mask = "causal" if first.causal else "non-causal"
    caption = (
        f"batch {first.batch}, 16 heads, head_dim {first.head_dim}, {first.dtype}, {mask}; {len(first.samples)} passes"
    )
    caption = "\n".join([f"{caption} of {first.seconds:g} s, median and range; {stamp}", *notes])
    figure.supxlabel(caption, fontsize=6.5, color="#444444")
    return save(figure, out)


def _bars(axis: Axes, runs: Sequence[Sequence[PowerPoint]], value: Callable[[PowerSample], float]) -> None:
    keys = [key for key in (*FIG12, CUBLAS) if any(key == point.implementation for run in runs for point in run)]
    width = 0.86 / len(keys)
    for place, key in enumerate(keys):
        label, look = label_and_look(key)
        found = [(g, p) for g, run in enumerate(runs) for p in run if p.implementation == key]
        values = [np.array([value(sample) for sample in p.samples]) for _, p in found]
        middle = np.array([np.median(v) for v in values])
        spread = np.array([[m - v.min() for m, v in zip(middle, values, strict=True)],
                           [v.max() - m for m, v in zip(middle, values, strict=True)]])  # fmt: skip
        axis.bar(
            [g + (place - (len(keys) - 1) / 2) * width for g, _ in found], middle, width, yerr=spread, label=label,
            error_kw={"elinewidth": 0.6, "capsize": 0.8, "ecolor": "#333333"},
            color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
    axis.set_xticks(range(len(runs)), [f"{run[0].seq_len // 1024}k" for run in runs])
    axis.set_xlabel("sequence length")
