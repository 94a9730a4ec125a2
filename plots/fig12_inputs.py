"""Speed over FA3 by kind of inputs and shape: a panel a kernel and mask, a row a kind, a column a shape.

A kernel's panels stand side by side.
"""

import statistics
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure

from kperf.attention.workload import InputKind, SweepName
from kperf.bench.points import Key, MeasuredPoint, Run
from kperf.bench.tables import SHIFTS, speedup, speedup_interval
from kperf.plots.style import PAGE_WIDTH, SMALL, compact, footnote, headline, label_and_style, save

BASELINE = "fa3"
KINDS: dict[InputKind, str] = {
    "normal": "standard normal q and k",
    "x2": "q twice that",
    "x4": "four times",
    "x10": "ten times",
    "sink": "all rows of q attend to the first key",
    "ramp": "scores grow from the first key to the last",
    "local": "rows attend to keys near them",
    "x30": "thirty times",
    "student": "Student's t of 3 degrees of freedom",
    "outliers": "four channels 12 and 6 times as large",
    "steps": "scores rise each 128 keys",
    "jump130_few": "one key is 2^130 above the others in a row of 1000",
    "jump130_tiles": "in a row of each tile",
    "jump130_rows": "in all rows",
    "jump200_few": "2^200, in a row of 1000",
    "jump200_tiles": "in a row of each tile",
    "jump200_rows": "in all rows",
}
"""What a row is of, in a footnote's words."""
WIDEST = 1.6
"""Ratios of this and more, and of its inverse and less, have the full colour."""

Shape = tuple[SweepName, int, int]
"""Sweep, batch and seq_len."""


def draw(
    runs: dict[Key, Run], compared: Sequence[str], title: Sequence[str], notes: Sequence[str], out: Path
) -> list[Path]:
    """Write `out` as PNG and PDF; `title`'s second line says where the numbers come from."""
    return save(figure(runs, compared, title, notes), out)


def figure(runs: dict[Key, Run], compared: Sequence[str], title: Sequence[str], notes: Sequence[str]) -> Figure:
    """Of what `runs` holds; the caller closes it."""
    masks = [causal for causal in (False, True) if any(workload.causal is causal for _, workload in runs)]
    shapes = list(dict.fromkeys((sweep, workload.batch, workload.seq_len) for sweep, workload in runs))
    height = 1.6 + (0.3 + 0.165 * len(_kinds(runs))) * len(compared)
    made = plt.figure(figsize=(PAGE_WIDTH, height), layout="constrained")
    axes = made.subplots(len(compared), len(masks), squeeze=False)
    for (row, key), (column, causal) in product(enumerate(compared), enumerate(masks)):
        axis = axes[row, column]
        _panel(axis, _of_mask(runs, causal), key, shapes)
        # All have the same rows and columns.
        axis.tick_params(length=0, labelbottom=row == len(compared) - 1, labelleft=column == 0)
        mask = "causal" if causal else "non-causal"
        axis.set_title(f"{label_and_style(key)[0]}, {mask}", loc="left", fontsize=SMALL, fontweight="bold")
    over = label_and_style(BASELINE)[0]
    explained = (
        f"Numbers: how many times faster than {over} on the same inputs; replays of CUDA graphs, all kinds of a shape "
        f"interleaved in the same rounds, medians. Orange is slower than {over}, purple faster. In brackets where 1 "
        f"lies in the interval in which a second run falls 19 times in 20; {SHIFTS} where a time had not settled. "
        "Columns: batch x seq_len; mean: the geometric mean of the row."
    )
    kinds = "; ".join(f"{kind}: {KINDS[kind]}" for kind in _kinds(runs))
    headline(made, [*_finding(runs, compared), *title], [], [])
    footnote(made, [f"Rows: what is in q and k. {kinds}.", explained, *notes])
    return made


def _of_mask(runs: dict[Key, Run], causal: bool) -> dict[Key, Run]:
    return {place: run for place, run in runs.items() if place[1].causal is causal}


def _kinds(runs: dict[Key, Run]) -> list[InputKind]:
    return list(dict.fromkeys(workload.inputs for _, workload in runs))


def _finding(runs: dict[Key, Run], compared: Sequence[str]) -> list[str]:
    """Between which ratios each implementation lies."""
    over = label_and_style(BASELINE)[0]
    findings = []
    for key in compared:
        ratios = [ratio for run in runs.values() if (ratio := speedup(run, key, BASELINE)) is not None]
        if ratios:
            findings.append(f"{label_and_style(key)[0]} is at {min(ratios):.2f} to {max(ratios):.2f} of {over}'s speed")
    return findings


def _panel(axis: Axes, runs: dict[Key, Run], key: str, shapes: Sequence[Shape]) -> None:
    kinds = _kinds(runs)
    place_of = {(sweep, w.batch, w.seq_len, w.inputs): run for (sweep, w), run in runs.items()}
    ratios = np.full((len(kinds), len(shapes) + 1), np.nan)
    for row, kind in enumerate(kinds):
        for column, shape in enumerate(shapes):
            run = place_of.get((*shape, kind), {})
            if (ratio := speedup(run, key, BASELINE)) is not None:
                ratios[row, column] = ratio
                axis.text(column, row, _cell(run, key, ratio), ha="center", va="center")
        known = [ratio for ratio in ratios[row, :-1] if not np.isnan(ratio)]
        if known:
            ratios[row, -1] = statistics.geometric_mean(known)
            axis.text(len(shapes), row, f"{ratios[row, -1]:.3f}", ha="center", va="center", fontweight="bold")
    axis.imshow(ratios, cmap="PuOr", norm=LogNorm(1 / WIDEST, WIDEST), aspect="auto", alpha=0.8)
    names = [f"{batch} x\n{compact(seq_len)}" for _, batch, seq_len in shapes]
    axis.set_xticks(range(len(shapes) + 1), [*names, "mean"])
    axis.set_yticks(range(len(kinds)), kinds)
    axis.spines[:].set_visible(False)
    for column in (sum(shape[0] == shapes[0][0] for shape in shapes), len(shapes)):
        axis.axvline(column - 0.5, color="white", linewidth=3)


def _cell(run: Run, key: str, ratio: float) -> str:
    interval = speedup_interval([run], key, BASELINE)
    shifted = any(isinstance(point, MeasuredPoint) and point.shifts for point in (run[key], run[BASELINE]))
    text = f"{SHIFTS if shifted else ''}{ratio:.2f}"
    return f"({text})" if interval is not None and interval[1] <= 1 <= interval[2] else text
