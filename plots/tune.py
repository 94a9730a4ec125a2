"""Attention before and after tuning, and how fast the search came near the best. Reads records, writes PDF and PNG."""

import statistics
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.attention.style import Style
from kperf.bench.points import MeasuredPoint
from kperf.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PAGE_WIDTH,
    PURPLE,
    SKY,
    SMALL,
    VERMILION,
    YELLOW,
    compact,
    footnote,
    grid,
    headline,
    label_and_style,
    save,
    value_above,
)
from kperf.tune.records import DEFAULT_KEY, GOAL, NATIVE, TUNED_KEY, VENDORS, Study
from kperf.tune.tables import label

_OURS = {DEFAULT_KEY: Style(YELLOW, "xx"), TUNED_KEY: Style(GREEN, "//")}
_KEYS = (*NATIVE, *VENDORS, *_OURS)
_LINES = (BLUE, ORANGE, GREEN, VERMILION, PURPLE, SKY)


def draw(studies: Sequence[Study], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(studies, stamp), out)


def figure(studies: Sequence[Study], stamp: str) -> Figure:
    """Left times as fast as native, by seq_len; right the best so far of each search, over the best of all known."""
    made, (left, right) = plt.subplots(1, 2, figsize=(PAGE_WIDTH, 3.2), layout="constrained", width_ratios=(2, 1))
    compared = [study for study in studies if study.comparison]
    _speedups(left, compared)
    _searches(right, studies)
    headline(made, [_finding(compared), stamp], *left.get_legend_handles_labels())
    if compared:
        of = compared[0].workload
        mask = "causal" if of.causal else "full"
        shape = f"batch {of.batch}, {of.heads} heads, head_dim {of.head_dim}, {of.dtype}, {mask}"
        notes = [f"{shape}; all of a length interleaved."]
        whole = all(study.is_exhaustive for study in studies)
        best = "the best of all" if whole else "the best tried, as not all were timed"
        notes.append(
            f"Right: how much slower the search's best is than {best}, after so many trials. Grey: within {GOAL:.0%}."
        )
        footnote(made, notes)
    return made


def _finding(compared: Sequence[Study]) -> str:
    """How much faster the kernel is tuned, in the geometric mean of what is compared."""
    gains = [
        before.median_ms / after.median_ms
        for run in (study.comparison for study in compared)
        if isinstance(before := run.get(DEFAULT_KEY), MeasuredPoint)
        and isinstance(after := run.get(TUNED_KEY), MeasuredPoint)
    ]
    if not gains:
        return "The Triton kernel before and after tuning"
    return f"Tuning makes the Triton kernel {statistics.geometric_mean(gains):.1f} x as fast (geometric mean)"


def _speedups(axis: Axes, compared: Sequence[Study]) -> None:
    times = [
        {key: point.median_ms for key, point in study.comparison.items() if isinstance(point, MeasuredPoint)}
        for study in compared
    ]
    bases = [next((key for key in NATIVE if key in run), None) for run in times]
    keys = [key for key in _KEYS if any(key in run for run in times)]
    width = 0.8 / max(len(keys), 1)
    for index, key in enumerate(keys):
        style = _OURS[key] if key in _OURS else label_and_style(key)[1]
        beside = (index - (len(keys) - 1) / 2) * width
        bars = [
            (place + beside, run[base] / run[key])
            for place, (run, base) in enumerate(zip(times, bases, strict=True))
            if key in run and base is not None
        ]
        xs, heights = [x for x, _ in bars], [height for _, height in bars]
        axis.bar(xs, heights, width, color=style.colour, hatch=style.hatch, edgecolor="black", lw=0.4, label=label(key))
        for x, height in bars:
            value_above(axis, x, height, f"{height:.2f}", upright=True)
    axis.set_xticks(range(len(compared)), [compact(study.workload.seq_len) for study in compared])
    axis.set_xlabel("sequence length")
    native = " or ".join(dict.fromkeys(label(key) for key in bases if key is not None))
    axis.set_title(f"times as fast as {native}", loc="left", fontsize=SMALL, fontweight="bold")
    axis.set_ylim(0, 1.2 * axis.get_ylim()[1])
    grid(axis)


def _searches(axis: Axes, studies: Sequence[Study]) -> None:
    axis.axhspan(0, 100 * GOAL, color="#e8e8e8", zorder=0)
    for index, study in enumerate(studies):
        every = study.tried("search") | study.tried("exhaustive")
        known = [cost for cost in every.values() if cost is not None]
        costs = [every[config] for config in study.tried("search")]
        best = list(accumulate((c if c is not None else float("inf") for c in costs), min))
        shown = [(n, 100 * (cost / min(known) - 1)) for n, cost in enumerate(best, 1) if cost < float("inf")]
        if shown:
            named = compact(study.workload.seq_len)
            size = max(2.0, 6.5 - 1.5 * index)  # smaller ones lie on larger ones, so that all of equal ones are seen
            colour = _LINES[index % len(_LINES)]
            axis.plot(*zip(*shown, strict=True), color=colour, marker="o", ms=size, lw=0.9, label=named, clip_on=False)
    if axis.get_lines():
        axis.legend(loc="upper right", frameon=False, fontsize=SMALL)  # where the falling lines are not
    axis.set_xlabel("trials")
    axis.set_title("% slower than the best, by length", loc="left", fontsize=SMALL, fontweight="bold")
    axis.set_ylim(-0.03 * axis.get_ylim()[1])
    grid(axis)
