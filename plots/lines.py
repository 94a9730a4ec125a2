"""What each profiler costs on one script, and where its samples fall. Reads records, writes PDF and PNG."""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.plots.style import BLUE, PAGE_WIDTH, SMALL, VERMILION, footnote, headline, save
from kperf.studies.lines import PROFILERS, CostRow, LineRow, LinesRow, factors, label

_LINES = 8
"""Of each kernel, those with the most samples."""
_LETTERS = 62
"""Of a line of source that there is room for."""
_CELL = 0.13
"""Width of a profiler's column, of the panel's."""


def draw(rows: Sequence[LinesRow], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, stamp), out)


def figure(rows: Sequence[LinesRow], stamp: str) -> Figure:
    """Above how many times as long launches and process take; below a panel a kernel, samples as heat beside source."""
    sampled = [row for row in rows if isinstance(row, LineRow)]
    kernels = list(dict.fromkeys(row.kernel for row in sampled))
    made = plt.figure(figsize=(PAGE_WIDTH, 2.6 + 1.7 * len(kernels)), layout="constrained")
    grid = made.add_gridspec(1 + len(kernels), 2, height_ratios=[1.2, *[1.0] * len(kernels)])
    launches, processes = factors(rows), factors(rows, of_process=True)
    names = sorted(launches, key=[*PROFILERS, *launches].index)
    _costs(
        made.add_subplot(grid[0, 0]), [launches[name] for name in names], "launches, times as long as without", names
    )
    _costs(made.add_subplot(grid[0, 1]), [processes[name] for name in names], "whole process, times as long", [])
    for place, kernel in enumerate(kernels, 1):
        _source(made.add_subplot(grid[place, :]), [row for row in sampled if row.kernel == kernel], kernel)
    headline(made, [_finding(sampled, launches), stamp], [], [])
    missing = [f"{label(row.profiler)}: {row.message}" for row in rows if isinstance(row, CostRow) and row.message]
    footnote(made, [*missing, "Cells: share of a kernel's samples, and in brackets of those in which no warp issued."])
    return made


def _finding(sampled: Sequence[LineRow], launches: Mapping[str, float]) -> str:
    """What samples by line cost."""
    profilers = [name for name in dict.fromkeys(row.profiler for row in sampled) if name in launches]
    if not profilers:
        return "What profilers cost, and where samples fall"
    costs = (f"{label(name).partition(',')[0]} {launches[name]:,.0f} x" for name in profilers)
    return f"With samples by line launches take as long: {', '.join(costs)}"


def _costs(axis: Axes, times: Sequence[float], title: str, names: Sequence[str]) -> None:
    bars = axis.barh(range(len(times)), times, color=BLUE)
    axis.bar_label(bars, [f"{time:,.{0 if time >= _MANY else 1}f} x" for time in times], padding=2)
    if max(times, default=0) > _MANY:
        axis.set_xscale("log")
    axis.margins(x=0.2)
    axis.set_yticks(range(len(times)), [label(name) for name in names] if names else [""] * len(times))
    axis.invert_yaxis()
    axis.set_title(title, loc="left", fontsize=SMALL, fontweight="bold")


_MANY = 10


def _source(axis: Axes, rows: Sequence[LineRow], kernel: str) -> None:
    """The lines of a kernel with the largest shares, in the order of the source, with a column of heat a profiler."""
    profilers = list(dict.fromkeys(row.profiler for row in rows))
    total = Counter[str]()
    for row in rows:
        total[row.profiler] += row.samples
    share = {(row.profiler, row.file, row.line): row.samples / (total[row.profiler] or 1) for row in rows}
    stalled = {(row.profiler, row.file, row.line): row.stalled / (row.samples or 1) for row in rows}
    text = {(row.file, row.line): row.text.rstrip() for row in rows}
    largest = sorted(text, key=lambda place: -max(share.get((name, *place), 0.0) for name in profilers))[:_LINES]
    most = max(share.values(), default=1.0) or 1.0
    for number, place in enumerate(sorted(largest)):
        for column, name in enumerate(profilers):
            part = share.get((name, *place), 0.0)
            axis.barh(number, _CELL * 0.97, 0.94, column * _CELL, color=VERMILION, alpha=0.75 * part / most)
            words = f"{part:.0%} ({stalled[name, *place]:.0%})" if (name, *place) in share else "-"
            axis.text((column + 0.5) * _CELL, number, words, ha="center", va="center")
        source = text[place] or f"({Path(place[0]).name})"
        line = f"{place[1]:>4}  {source if len(source) <= _LETTERS else source[: _LETTERS - 1] + '…'}"
        axis.text(len(profilers) * _CELL + 0.01, number, line, family="monospace", va="center")
    for column, name in enumerate(profilers):
        axis.text((column + 0.5) * _CELL, -0.9, label(name).partition(",")[0], ha="center", va="center")
    axis.set_xlim(0, 1)
    axis.set_ylim(len(largest) - 0.5, -1.4)
    axis.set_axis_off()
    axis.set_title(kernel, loc="left", fontsize=SMALL, fontweight="bold")
