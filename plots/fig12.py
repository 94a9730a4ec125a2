"""Fig. 12 from recorded points: TFLOPS by seq_len and by batch size. Reads results, writes PDF and PNG."""

import statistics
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from kperf.attention.implementations import FIG12
from kperf.bench.points import Key, MeasuredPoint, Point
from kperf.record.store import Environment
from plots.style import label_and_look, save


def draw(
    runs: dict[Key, dict[str, Point]],
    environments: dict[str, Environment],
    stamp: str,
    title: str,
    notes: Sequence[str],
    out: Path,
) -> list[Path]:
    """Two panels of grouped bars; `out` without a suffix. Returns the files written."""
    figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), sharey=True, layout="constrained")
    there = {p.implementation for run in runs.values() for p in run.values() if p.status != "unsupported"}
    keys = [key for key in FIG12 if key in there]
    for axis, sweep, label in zip(
        axes,
        ("seq_len", "batch_size"),
        ("sequence length (batch 16)", "batch size (sequence length 4096)"),
        strict=True,
    ):
        panel = {workload: run for (name, workload), run in runs.items() if name == sweep}
        ticks = [w.seq_len if sweep == "seq_len" else w.batch for w in panel]
        _bars(axis, list(panel.values()), keys)
        axis.set_xticks(range(len(ticks)), [f"{tick // 1024}k" if tick >= 1024 else str(tick) for tick in ticks])
        axis.set_xlabel(label)
    ceilings = [p.ceiling_tflops for run in runs.values() for p in run.values() if isinstance(p, MeasuredPoint)]
    known = [ceiling for ceiling in ceilings if ceiling is not None]
    if known:
        for axis in axes:
            axis.axhline(statistics.median(known), color="black", linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
        axes[0].annotate(
            "cuBLAS 8192³ bfloat16", (-0.45, statistics.median(known)), xytext=(0, 2), textcoords="offset points"
        )
    axes[0].set_ylabel("TFLOPS")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=len(keys), loc="outside upper center", frameon=False, handlelength=1.4)
    caption = f"{title}: {stamp}\n{_versions(runs, environments)}; whiskers: 95 % interval of the median"
    caption = "\n".join([caption, *notes])
    figure.supxlabel(caption, fontsize=6.5, color="#444444")
    return save(figure, out)


def _bars(axis: Axes, runs: Sequence[dict[str, Point]], keys: Sequence[str]) -> None:
    width = 0.86 / len(keys)
    for place, key in enumerate(keys):
        label, look = label_and_look(key)
        offset = (place - (len(keys) - 1) / 2) * width
        xs, heights, low, high = [], [], [], []
        for group, run in enumerate(runs):
            point = run.get(key)
            if isinstance(point, MeasuredPoint):
                xs.append(group + offset)
                heights.append(point.tflops)
                fastest, slowest = (point.flops / ms / 1e9 for ms in point.ci95_ms)
                low.append(point.tflops - slowest)
                high.append(fastest - point.tflops)
            elif point is not None and point.status != "unsupported":
                axis.annotate(point.status, (group + offset, 4), rotation=90, ha="center", fontsize=5)
        whiskers = {"elinewidth": 0.6, "capsize": 0.8, "ecolor": "#333333"}
        axis.bar(
            xs, heights, width, yerr=(low, high), label=label, error_kw=whiskers,
            color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.3,
        )  # fmt: skip


def _versions(runs: dict[Key, dict[str, Point]], environments: dict[str, Environment]) -> str:
    ids = {point.environment for run in runs.values() for point in run.values()}
    known = [environments[name] for name in sorted(ids) if name in environments]
    parts = {
        f"torch {e.torch}, triton {e.triton}, cuDNN {e.cudnn}, fa3-fwd {e.fa3_fwd}, driver {e.driver}" for e in known
    }
    return "; ".join(sorted(parts))
