"""What each profiler costs on one script, and where its samples fall. Reads records, writes PDF and PNG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.profilers.lines import PROFILERS, CostRow, LineRow, LinesRow, factors
from plots.style import BLUE, ORANGE, PAGE_WIDTH, SMALL, VERMILION, footnote, headline, save

_LINES = 8
"""Of each kernel, those with the most samples."""


def draw(rows: Sequence[LinesRow], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, stamp), out)


def figure(rows: Sequence[LinesRow], stamp: str) -> Figure:
    """Left how many times as long the launches take; right the lines with the most samples, by each that samples."""
    pairs = list(dict.fromkeys((row.profiler, row.kernel) for row in rows if isinstance(row, LineRow)))
    made, axes = plt.subplots(
        max(len(pairs), 1), 2, figsize=(PAGE_WIDTH, 1.6 + 1.5 * max(len(pairs), 1)), layout="constrained", squeeze=False
    )
    grid = axes[0, 0].get_gridspec()
    for axis in axes[:, 0]:
        axis.remove()
    _costs(made.add_subplot(grid[:, 0]), factors(rows))
    for axis, (profiler, kernel) in zip(axes[:, 1], pairs, strict=False):
        mine = [row for row in rows if isinstance(row, LineRow) and (row.profiler, row.kernel) == (profiler, kernel)]
        _lines(axis, mine, f"{kernel} by {PROFILERS.get(profiler, profiler)}")
    headline(made, ["What profilers cost, and where samples fall", stamp], [], [])
    missing = [f"{PROFILERS[row.profiler]}: {row.message}" for row in rows if isinstance(row, CostRow) and row.message]
    footnote(made, [*missing, "Right: share of a kernel's samples; the darker part is stalled."])
    return made


def _costs(axis: Axes, times: dict[str, float]) -> None:
    names = [name for name in PROFILERS if name in times]
    bars = axis.barh([PROFILERS[name] for name in names], [times[name] for name in names], color=BLUE)
    axis.bar_label(bars, [f"{times[name]:.3g}x" for name in names], padding=2)
    axis.set_xscale("log")
    axis.margins(x=0.2)
    axis.invert_yaxis()
    axis.set_title("launches, times as long as without", loc="left", fontsize=SMALL, fontweight="bold")


def _lines(axis: Axes, rows: Sequence[LineRow], title: str) -> None:
    total = sum(row.samples for row in rows) or 1
    most = sorted(sorted(rows, key=lambda row: -row.samples)[:_LINES], key=lambda row: (row.file, row.line))
    places = range(len(most))
    axis.barh(places, [row.samples / total for row in most], color=ORANGE)
    axis.barh(places, [row.stalled / total for row in most], color=VERMILION)
    axis.set_yticks(places, [f"{row.line}: {row.text.strip()[:38]}" for row in most], family="monospace", fontsize=5.5)
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=SMALL, fontweight="bold")
