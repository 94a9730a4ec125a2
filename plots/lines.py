"""What each profiler costs on one script, and where its samples fall. Reads records, writes PDF and PNG."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.plots.style import BLUE, ORANGE, PAGE_WIDTH, SMALL, VERMILION, footnote, headline, save
from kperf.studies.lines import PROFILERS, CostRow, LineRow, LinesRow, factors, label

_LINES = 8
"""Of each kernel, those with the most samples."""
_LETTERS = 34
"""Of a line."""


def draw(rows: Sequence[LinesRow], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, stamp), out)


def figure(rows: Sequence[LinesRow], stamp: str) -> Figure:
    """Above how many times as long the launches take; below, a row a kernel, its lines by each that samples."""
    sampled = [row for row in rows if isinstance(row, LineRow)]
    kernels = list(dict.fromkeys(row.kernel for row in sampled))
    profilers = list(dict.fromkeys(row.profiler for row in sampled))
    made = plt.figure(figsize=(PAGE_WIDTH, 2.3 + 1.7 * len(kernels)), layout="constrained")
    grid = made.add_gridspec(1 + len(kernels), max(len(profilers), 1), height_ratios=[1.2, *[1.0] * len(kernels)])
    _costs(made.add_subplot(grid[0, :]), factors(rows))
    for place, kernel in enumerate(kernels, 1):
        most = _most(sampled, kernel)
        for column, profiler in enumerate(profilers):
            mine = [row for row in sampled if (row.profiler, row.kernel) == (profiler, kernel)]
            axis = made.add_subplot(grid[place, column])
            _lines(axis, mine, most, f"{kernel}\n{label(profiler)}", named=column == 0)
    headline(made, ["What profilers cost, and where samples fall", stamp], [], [])
    missing = [f"{label(row.profiler)}: {row.message}" for row in rows if isinstance(row, CostRow) and row.message]
    footnote(made, [*missing, "Below: share of a kernel's samples; the darker part is stalled."])
    return made


def _costs(axis: Axes, times: dict[str, float]) -> None:
    names = sorted(times, key=[*PROFILERS, *times].index)
    bars = axis.barh([label(name) for name in names], [times[name] for name in names], color=BLUE)
    axis.bar_label(bars, [f"{times[name]:,.{0 if times[name] >= _MANY else 1}f}x" for name in names], padding=2)
    if times:
        axis.set_xscale("log")
    axis.margins(x=0.12)
    axis.invert_yaxis()
    axis.set_title("launches, times as long as without", loc="left", fontsize=SMALL, fontweight="bold")


_MANY = 10

_Place = tuple[str, int]
"""A file and a line in it."""


def _most(rows: Sequence[LineRow], kernel: str) -> dict[_Place, str]:
    """The lines of a kernel with the largest shares by any profiler, in the order of the source, and their labels."""
    mine = [row for row in rows if row.kernel == kernel]
    total = Counter[str]()
    for row in mine:
        total[row.profiler] += row.samples
    share: dict[_Place, float] = defaultdict(float)
    for row in mine:
        share[row.file, row.line] += row.samples / (total[row.profiler] or 1)
    kept = sorted(sorted(share, key=lambda place: -share[place])[:_LINES])
    text = {(row.file, row.line): row.text.strip() for row in mine}
    return {
        place: f"{place[1]}: {text[place][:_LETTERS]}" if text[place] else f"{Path(place[0]).name}:{place[1]}"
        for place in kept
    }


def _lines(axis: Axes, rows: Sequence[LineRow], most: dict[_Place, str], title: str, *, named: bool) -> None:
    total = sum(row.samples for row in rows) or 1
    here = {(row.file, row.line): row for row in rows}
    for count, colour in (("samples", ORANGE), ("stalled", VERMILION)):
        widths = [100 * getattr(here[place], count) / total if place in here else 0 for place in most]
        axis.barh(range(len(most)), widths, color=colour)
    axis.set_yticks(
        range(len(most)), list(most.values()) if named else [""] * len(most), family="monospace", fontsize=6
    )
    axis.invert_yaxis()
    axis.set_xlabel("%")
    axis.set_title(title, loc="left", fontsize=SMALL, fontweight="bold")
