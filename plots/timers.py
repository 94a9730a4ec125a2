"""How far timers disagree about one call, and the bandwidth of y = x * x by size. Reads records, writes PDF and PNG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.plots.style import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PAGE_WIDTH,
    PURPLE,
    SMALL,
    VERMILION,
    footnote,
    grid,
    headline,
    save,
)  # fmt: skip
from kperf.studies.operations import OPERATIONS, N
from kperf.studies.timers import GOAL, REFERENCE, TIMERS, TimerRow, timer_label

STYLES = {
    "eager": (BLUE, "o"),
    "compile": (ORANGE, "s"),
    "triton": (GREEN, "^"),
    "cuda": (PURPLE, "v"),
    "numba": (VERMILION, "D"),
    "copy": (GREY, "x"),
    "attention": (BLACK, "*"),
}
"""Operation -> colour and marker."""
_LINEAR = 5
"""Percent: beyond that the axis is logarithmic."""
_TICKS = (-50, -20, -10, -5, -2, 0, 2, 5, 10, 20, 50, 100, 200, 500)


def draw(rows: Sequence[TimerRow], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, stamp), out)


def figure(rows: Sequence[TimerRow], stamp: str) -> Figure:
    """Left each timer's median over the reference's; right GB/s over the size."""
    made, (left, right) = plt.subplots(1, 2, figsize=(PAGE_WIDTH, 3.6), layout="constrained", width_ratios=(3, 2))
    _timers(left, rows)
    _sizes(right, rows)
    headline(made, [_finding(rows), stamp], *left.get_legend_handles_labels())
    lacking = sorted({timer_label(row.timer) for row in rows if not row.samples_us and row.operation == "triton"})
    notes = [f"Band: {GOAL:.0%}. Left: y = x * x reads and writes {4 * N >> 20} MiB each."]
    footnote(made, [*notes, *([f"No time of Triton's kernel by {', '.join(lacking)}."] if lacking else [])])
    return made


def _medians(rows: Sequence[TimerRow]) -> dict[tuple[str, str], float]:
    """Microseconds by operation and timer, at the size that is compared."""
    return {(row.operation, row.timer): row.median_us for row in rows if row.n == N and row.median_us}


def _finding(rows: Sequence[TimerRow]) -> str:
    """How far the timers lie apart on Triton's kernel."""
    medians = {timer: us for (operation, timer), us in _medians(rows).items() if operation == "triton"}
    if REFERENCE not in medians or len(medians) < 2:
        return "One call under many timers"
    low, high = (
        f"{100 * (end / medians[REFERENCE] - 1):+.0f} %" for end in (min(medians.values()), max(medians.values()))
    )
    return f"One call of Triton's y = x * x: {len(medians) - 1} timers differ by {low} to {high} from ours"


def _timers(axis: Axes, rows: Sequence[TimerRow]) -> None:
    medians = _medians(rows)
    shown = [timer for timer in TIMERS if any(timer == measured for _, measured in medians)]
    axis.axvspan(-100 * GOAL, 100 * GOAL, color="#e8e8e8", zorder=0)
    axis.axvline(0, color="black", lw=0.6)
    for key, (colour, marker) in STYLES.items():
        reference = medians.get((key, REFERENCE))
        if reference is None:
            continue
        off = {t: 100 * (medians[key, t] / reference - 1) for t in shown if (key, t) in medians}  # type: ignore[operator]
        places = [shown.index(timer) for timer in off]
        axis.plot(list(off.values()), places, marker, color=colour, ms=4, label=OPERATIONS[key].label, ls="")
    # What is launched by Python each time is tens of percent off, and what is to be compared a few.
    axis.set_xscale("symlog", linthresh=_LINEAR)
    low, high = axis.get_xlim()
    ticks = [tick for tick in _TICKS if low <= tick <= high]
    axis.set_xticks(ticks, [f"{tick:+d}" if tick else "0" for tick in ticks])
    axis.minorticks_off()
    axis.set_yticks(range(len(shown)), [TIMERS[timer].label for timer in shown])
    axis.invert_yaxis()
    axis.set_xlabel(f"% over {TIMERS[REFERENCE].label}")


def _sizes(axis: Axes, rows: Sequence[TimerRow]) -> None:
    for key, (colour, marker) in STYLES.items():
        of_operation = sorted((row.n, row.gb_per_s) for row in rows if row.operation == key and row.timer == "do_bench")
        points = [(n, rate) for n, rate in of_operation if rate is not None and key != "attention"]
        if points:
            axis.plot(*zip(*points, strict=True), marker=marker, color=colour, ms=3.5, lw=0.9)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("numbers of y = x * x")
    axis.set_title("GB/s by do_bench", loc="left", fontsize=SMALL, fontweight="bold")
    axis.set_ylim(0)
    grid(axis)
