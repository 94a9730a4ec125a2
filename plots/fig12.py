"""Fig. 12 from recorded points: TFLOPS by seq_len and by batch, and speedups. Reads results, writes PDF and PNG."""

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kperf.attention.implementations import FIG12, RATIOS
from kperf.bench.intervals import SHIFT
from kperf.bench.points import Key, MeasuredPoint, Point, Run
from kperf.bench.tables import LONG_SEQ_LEN, SHIFTS, speedup, speedup_interval
from kperf.plots.style import PAGE_WIDTH, SMALL, compact, footnote, grid, headline, label_and_look, save, value_above
from kperf.record.store import Environment

REFERENCES = ("fa3", "cudnn")
"""Speedups are shown over the first of these that the figure has."""

_AXES = {
    "seq_len": ("sequence length", "by sequence length, batch 16"),
    "batch_size": ("batch", "by batch, sequence length 4096"),
}

_DASHES = (0, (3, 1.5))
_MARKERS = "so^D"

WIDTH = 0.88
"""Of a group of bars; groups stand 1 apart."""


def draw(
    runs: dict[Key, Run],
    environments: dict[str, Environment],
    title: Sequence[str],
    notes: Sequence[str],
    out: Path,
    *,
    in_turn: bool = True,
) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(runs, environments, title, notes, in_turn=in_turn), out)


def figure(
    runs: dict[Key, Run],
    environments: dict[str, Environment],
    title: Sequence[str],
    notes: Sequence[str],
    *,
    in_turn: bool = True,
) -> Figure:
    """For each sweep bars, the speedups over FA3 (else cuDNN) under CUDA graphs and eager, and these as numbers.

    `title`: what is compared, and where and when it was measured; `notes` stand below, a line each. Without `in_turn`,
    where a group's bars are of several runs, there are no speedups.
    """
    points = [point for run in runs.values() for key, point in run.items() if key in FIG12]
    keys = [key for key in FIG12 if any(p.implementation == key and p.status != "unsupported" for p in points)]
    sweeps = [name for name in _AXES if any(sweep == name for sweep, _ in runs)]
    over = next((key for key in REFERENCES if in_turn and key in keys), "")
    compared = [key for key in keys if (key, over) in RATIOS]
    heights = [1.65, *([0.8] if compared else []), 0.14 * (1 + len(compared))]
    made = plt.figure(figsize=(PAGE_WIDTH, 1.7 + len(sweeps) * (0.35 + sum(heights))), layout="constrained")
    axes = made.subplots(len(heights) * len(sweeps), 1, squeeze=False, height_ratios=heights * len(sweeps))[:, 0]
    top = max((p.flops / p.ci95_ms[0] / 1e9 for p in points if isinstance(p, MeasuredPoint)), default=1)
    for place, sweep in enumerate(sweeps):
        bars, *ratios, table = axes[len(heights) * place : len(heights) * (place + 1)]
        panel = [(workload, run) for (name, workload), run in runs.items() if name == sweep]
        shown = [run for _, run in panel]
        across, where = _AXES[sweep]
        ticks = [compact(workload.seq_len if sweep == "seq_len" else workload.batch) for workload, _ in panel]
        _bars(bars, shown, keys)
        bars.set_title(where, loc="left", fontsize=SMALL, fontweight="bold")
        bars.set_ylim(0, 1.22 * top)  # room for the numbers on the bars
        for axis in ratios:
            _speedups(axis, shown, compared, over)
        _table(table, [_row(run, compared, over) for run in shown], compared, across, ticks)
        for axis in (bars, *ratios, table):
            axis.set_xlim(-0.5, len(ticks) - 0.5)
    handles, labels = axes[0].get_legend_handles_labels()
    if ceilings := [p.ceiling_tflops for p in points if isinstance(p, MeasuredPoint) and p.ceiling_tflops]:
        handles.append(Line2D([], [], color="black", linewidth=1, linestyle=_DASHES))
        labels.append(f"cuBLAS 8192³, same rounds: {min(ceilings):.0f} to {max(ceilings):.0f}")
    headline(made, title, handles, labels)
    footnote(made, [*_explained(points, over if compared else "", in_turn=in_turn), *notes, *_versions(environments)])
    return made


def _bars(axis: Axes, runs: Sequence[Run], keys: Sequence[str]) -> None:
    width = WIDTH / len(keys)
    upright = len(keys) > 3  # three numbers fit side by side
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
                low.append(max(point.tflops - slowest, 0))
                high.append(max(fastest - point.tflops, 0))
                value_above(axis, xs[-1], max(fastest, point.tflops), _number(point), upright=upright)
            elif point is not None and point.status != "unsupported":
                value_above(axis, group + offset, 0, point.status, upright=True)
        axis.bar(
            xs, heights, width, yerr=(low, high), label=label,
            error_kw={"elinewidth": 0.7, "capsize": 1, "ecolor": "black"},
            color=look.colour, hatch=look.hatch, edgecolor="white", linewidth=0.3,
        )  # fmt: skip
    for group, run in enumerate(runs):
        known = [p.ceiling_tflops for p in run.values() if isinstance(p, MeasuredPoint) and p.ceiling_tflops]
        if known:
            line = statistics.median(known)
            axis.hlines(line, group - 0.47, group + 0.47, "black", _DASHES, linewidth=1, zorder=2.5)
    axis.set_xticks(range(len(runs)), [])
    axis.set_ylabel("TFLOPS")
    grid(axis)


def _number(point: MeasuredPoint) -> str:
    """TFLOPS, marked as in the tables if they had not settled."""
    return f"{point.tflops:.0f}{SHIFTS if point.shifts else ''}"


def _speedups(axis: Axes, runs: Sequence[Run], compared: Sequence[str], over: str) -> None:
    for place, key in enumerate(compared):
        label, look = label_and_look(key)
        offset = (place - (len(compared) - 1) / 2) * 0.5 / max(len(compared), 2)
        marker = _MARKERS[FIG12.index(key) % len(_MARKERS)]
        found = [(group + offset, speedup_interval([run], key, over)) for group, run in enumerate(runs)]
        shown = [(x, *interval) for x, interval in found if interval is not None]
        spread = ([max(v - low, 0) for _, v, low, _ in shown], [max(high - v, 0) for _, v, _, high in shown])
        axis.errorbar(
            [x for x, *_ in shown], [value for _, value, _, _ in shown], yerr=spread, fmt=marker, label=label,
            color=look.colour, ecolor="black", elinewidth=0.7, markersize=4.5,
        )  # fmt: skip
        eager = [(x + 0.09, _eager(run, key, over)) for (x, _), run in zip(found, runs, strict=True)]
        axis.plot(
            [x for x, ratio in eager if ratio], [ratio for _, ratio in eager if ratio], marker,
            label=f"{label}, eager", color=look.colour, markerfacecolor="white", markersize=4.5,
        )  # fmt: skip
    axis.axhline(1, color="black", linewidth=0.8, zorder=1)
    axis.margins(y=0.15)
    axis.set_xticks(range(len(runs)), [])
    axis.set_ylabel(f"speed over\n{label_and_look(over)[0]}")
    grid(axis)


def _eager(run: Run, ours: str, theirs: str) -> float | None:
    """How many times faster a single call without a graph is, from Python to the GPU's end."""
    a, b = run.get(ours), run.get(theirs)
    return b.eager_ms / a.eager_ms if isinstance(a, MeasuredPoint) and isinstance(b, MeasuredPoint) else None


def _row(run: Run, compared: Sequence[str], over: str) -> list[str]:
    """For each that is compared its speedup under CUDA graphs, and in brackets of a single call."""
    both = [(speedup(run, key, over), _eager(run, key, over)) for key in compared]
    return ["-" if graph is None or eager is None else f"{graph:.2f} ({eager:.2f})" for graph, eager in both]


def _table(
    axis: Axes, columns: Sequence[Sequence[str]], compared: Sequence[str], across: str, ticks: Sequence[str]
) -> None:
    """The ticks of the panels above, and a row of speedups for each that is compared."""
    for group, (tick, cells) in enumerate(zip(ticks, columns, strict=True)):
        axis.text(group, 0, tick, ha="center", va="center", fontweight="bold")
        for row, cell in enumerate(cells, 1):
            axis.text(group, row, cell, ha="center", va="center")
    names = [fill(label_and_look(key)[0].removeprefix("Triton-FA3 "), 20) for key in compared]
    axis.set_yticks(range(1 + len(names)), [across, *names])
    axis.set_ylim(len(names) + 0.5, -0.5)
    axis.tick_params(length=0)
    axis.set_xticks([])
    axis.spines[:].set_visible(False)


def _explained(points: Sequence[Point], over: str, *, in_turn: bool) -> list[str]:
    """What a reader must know to read the bars; all numbers are the record's."""
    measured = [point for point in points if isinstance(point, MeasuredPoint)]
    if not measured:
        return []
    old = any(point.settling is None for point in measured)
    whiskers = "95 % interval" if old else "where a second run falls 19 times in 20"
    taken = "all of a group in turn" if in_turn else "a group's are of two runs"
    shown = "Bars and filled marks" if over else "Bars"
    kinds = ", ".join(dict.fromkeys(point.inputs for point in measured))
    lines = [f"{shown}: replays of CUDA graphs on {kinds} random inputs, {taken}; median, and {whiskers}."]
    if over:
        lines[0] += (
            " Open marks and numbers in brackets: single calls from Python (eager). "
            f"Rows: speed over {label_and_look(over)[0]}."
        )
    if any(point.shifts for point in measured):
        lines.append(f"{SHIFTS} The two halves of the samples differ by more than {SHIFT:.0%}.")
    clocks: dict[str, list[int]] = {}
    for point in measured:
        clocks.setdefault(point.run, []).extend(point.device_states.sm_mhz)
    medians = [statistics.median(clock) for clock in clocks.values() if clock]
    capped = Counter("SW_POWER_CAP" in reasons for p in measured for reasons in p.device_states.throttle)
    widest = max(measured, key=lambda p: max(p.samples_ms) / min(p.samples_ms) if p.seq_len >= LONG_SEQ_LEN else 1)
    slow, fast = (widest.flops / ms / 1e9 for ms in (max(widest.samples_ms), min(widest.samples_ms)))
    if medians:
        lines.append(
            f"The power cap held the clock down in {capped[True] / capped.total():.0%} of the rounds (a group's median "
            f"clock: {min(medians):.0f} to {max(medians):.0f} MHz), for cuBLAS too, which is therefore no ceiling; and "
            f"single samples spread, from {LONG_SEQ_LEN} on most those of {label_and_look(widest.implementation)[0]} "
            f"at {widest.batch} x {compact(widest.seq_len)}: {slow:.0f} to {fast:.0f} TFLOPS."
        )
    return lines


def _versions(environments: dict[str, Environment]) -> list[str]:
    parts = {
        f"torch {e.torch}, triton {e.triton}, cuDNN {e.cudnn}, fa3-fwd {e.fa3_fwd}, driver {e.driver}"
        for e in environments.values()
    }
    return ["; ".join(sorted(parts)) + "."] if parts else []
