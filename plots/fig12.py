"""Fig. 12 from recorded points: speed over FA3, TFLOPS, and single calls. Reads results, writes PDF, PNG and CSV."""

import csv
import io
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.gridspec import SubplotSpec

from kperf.attention.implementations import FIG12, RATIOS
from kperf.bench.points import CUBLAS, Key, MeasuredPoint, Point, Run
from kperf.bench.tables import speedup_interval
from kperf.plots.style import (
    BLACK,
    LINES,
    PAGE_WIDTH,
    SMALL,
    LineEnd,
    compact,
    footnote,
    grid,
    headline,
    label_and_style,
    name_ends,
    readable,
    save,
)
from kperf.record.files import write_atomically
from kperf.record.store import Environment

REFERENCES = ("fa3", "cudnn")
"""Speedups are shown over the first of these that the figure has."""

_SWEEPS = {
    "seq_len": ("sequence length", "batch 16"),
    "batch_size": ("batch", "sequence length 4096"),
}
"""What a sweep changes, and what it keeps."""

_DASHES = (0, (3, 1.5))
_ROW = 0.075
"""Height of a line of type, of a panel's."""


def draw(
    runs: dict[Key, Run],
    environments: dict[str, Environment],
    title: Sequence[str],
    notes: Sequence[str],
    out: Path,
    *,
    in_turn: bool = True,
) -> list[Path]:
    """Write `figure` as PDF and PNG and `table` as CSV; `out` without a suffix. Returns the figure's files."""
    write_atomically(out.with_suffix(".csv"), table(runs, in_turn=in_turn))
    return save(figure(runs, environments, title, notes, in_turn=in_turn), out)


def figure(
    runs: dict[Key, Run],
    environments: dict[str, Environment],
    title: Sequence[str],
    notes: Sequence[str],
    *,
    in_turn: bool = True,
) -> Figure:
    """A row a sweep: speed over FA3 (else cuDNN) beside TFLOPS, both under CUDA graphs; then a row of single calls.

    `title`: what is compared, and where and when it was measured; the finding stands above it. `notes` stand below, a
    line each. Without `in_turn`, where a group's bars are of several runs, there are TFLOPS alone.
    """
    points = [point for run in runs.values() for key, point in run.items() if key in FIG12]
    keys = _keys(points)
    over = _reference(keys) if in_turn else ""
    sweeps = [name for name in _SWEEPS if any(sweep == name for sweep, _ in runs)]
    rows = len(sweeps) + 1 if over else 1
    made = plt.figure(figsize=(PAGE_WIDTH, 1.4 + 1.9 * rows), layout="constrained")
    panels = made.add_gridspec(rows, 2)
    for place, sweep in enumerate(sweeps):
        across, kept = _SWEEPS[sweep]
        places = {workload: run for (name, workload), run in runs.items() if name == sweep}
        ticks = [compact(workload.seq_len if sweep == "seq_len" else workload.batch) for workload in places]
        shown = list(places.values())
        if over:
            reference = label_and_style(over)[0]
            for panel, how, value in (
                (panels[place, 0], "CUDA graphs", _speed(over)),
                (panels[-1, place], "single calls", _eager_speed(over)),
            ):
                axis = _panel(made, panel, f"speed over {reference}, {how}", kept, across, ticks)
                axis.axhline(1, color=BLACK, linewidth=0.6, zorder=1)
                name_ends(axis, _lines(axis, shown, keys, value), _ROW)
        rates = _panel(made, panels[place, 1] if over else panels[0, place], "TFLOPS, CUDA graphs", kept, across, ticks)
        ends = [*_lines(rates, shown, keys, _tflops), *_ceiling(rates, shown)]
        _without_a_time(rates, shown, keys)
        rates.set_ylim(bottom=0)
        name_ends(rates, ends, _ROW)
    headline(made, [*_finding(list(runs.values()), keys, over), *title], [], [])
    footnote(made, [*_explained(points, in_turn=in_turn), *notes, *_versions(environments)])
    return made


def table(runs: dict[Key, Run], *, in_turn: bool) -> str:
    """The figure's numbers as CSV: a row an implementation and workload.

    Columns: sweep, batch, seq_len, implementation, status; tflops with its interval; speed_over_fa3 (or another, empty
    if the runs do not compare) with its interval; the same of single calls.
    """
    keys = _keys([point for run in runs.values() for point in run.values()])
    over = _reference(keys) if in_turn else ""
    measures: dict[str, Value] = {"tflops": _tflops}
    if over:
        measures |= {f"speed_over_{over}": _speed(over), f"eager_speed_over_{over}": _eager_speed(over)}
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    columns = [f"{name}{end}" for name in measures for end in ("", "_low", "_high")]
    writer.writerow(["sweep", "batch", "seq_len", "implementation", "status", *columns])
    for (sweep, workload), run in runs.items():
        for key in [key for key in keys if key in run]:
            triples = [value(run, key) for value in measures.values()]
            cells = [
                f"{number:.4g}" if number is not None else "" for three in triples for number in three or [None] * 3
            ]
            writer.writerow([sweep, workload.batch, workload.seq_len, key, run[key].status, *cells])
    return stream.getvalue()


def _keys(points: Sequence[Point]) -> list[str]:
    """The implementations that are drawn, in order."""
    return [key for key in FIG12 if any(p.implementation == key and p.status != "unsupported" for p in points)]


def _reference(keys: Sequence[str]) -> str:
    return next((key for key in REFERENCES if key in keys), "")


def _panel(made: Figure, place: SubplotSpec, measure: str, kept: str, across: str, ticks: Sequence[str]) -> Axes:
    axis = made.add_subplot(place)
    axis.set_title(f"{measure}; {kept}", loc="left", fontsize=SMALL, fontweight="bold")
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlabel(across)
    grid(axis)
    return axis


Number = tuple[float, float | None, float | None]
"""What is drawn, and where its interval begins and ends, if one is known."""
Value = Callable[[Run, str], Number | None]
"""What is drawn of an implementation in a run; None without a time."""


def _speed(over: str) -> Value:
    return lambda run, key: speedup_interval([run], key, over)


def _eager_speed(over: str) -> Value:
    """How many times faster a single call without a graph is, from Python to the GPU's end; no interval is recorded."""

    def value(run: Run, key: str) -> Number | None:
        a, b = run.get(key), run.get(over)
        if not (isinstance(a, MeasuredPoint) and isinstance(b, MeasuredPoint)):
            return None
        return (b.eager_ms / a.eager_ms, None, None) if a.eager_ms and b.eager_ms else None

    return value


def _tflops(run: Run, key: str) -> Number | None:
    point = run.get(key)
    if not isinstance(point, MeasuredPoint):
        return None
    fastest, slowest = (point.flops / ms / 1e9 for ms in point.ci95_ms)
    return point.tflops, min(slowest, point.tflops), max(fastest, point.tflops)


def _lines(axis: Axes, runs: Sequence[Run], keys: Sequence[str], value: Value) -> list[LineEnd]:
    """A line an implementation with its intervals, those that are compared the thicker; their ends."""
    ends = []
    for key in keys:
        points = [(group, three) for group, run in enumerate(runs) if (three := value(run, key)) is not None]
        if not points:
            continue
        label, style = label_and_style(key)
        xs, middles = [group for group, _ in points], [three[0] for _, three in points]
        spread = [
            [0.0 if low is None else middle - low for _, (middle, low, _) in points],
            [0.0 if high is None else high - middle for _, (middle, _, high) in points],
        ]
        compared = any(ours == key for ours, _ in RATIOS)
        axis.errorbar(
            xs, middles, yerr=spread if any(map(any, spread)) else None,
            label=label, color=readable(style.colour, LINES), marker=style.marker,
            markersize=3.5, linewidth=1.6 if compared else 0.8, elinewidth=0.8, capsize=1.5,
            zorder=3 if compared else 2,
        )  # fmt: skip
        ends.append(LineEnd(label.removeprefix("Triton-FA3 "), xs[-1], middles[-1], style.colour))
    return ends


def _ceiling(axis: Axes, runs: Sequence[Run]) -> list[LineEnd]:
    """What cuBLAS reached in the same rounds."""
    known = {
        group: statistics.median(rates)
        for group, run in enumerate(runs)
        if (rates := [p.ceiling_tflops for p in run.values() if isinstance(p, MeasuredPoint) and p.ceiling_tflops])
    }
    if not known:
        return []
    label, style = label_and_style(CUBLAS)
    axis.plot(list(known), list(known.values()), color=style.colour, linestyle=_DASHES, linewidth=0.8, label=label)
    return [LineEnd(label, max(known), known[max(known)], style.colour)]


def _without_a_time(axis: Axes, runs: Sequence[Run], keys: Sequence[str]) -> None:
    """Why a line has a gap, where it is."""
    for group, run in enumerate(runs):
        lines = [
            f"{label_and_style(key)[0]}: {run[key].status}"
            for key in keys
            if key in run and run[key].status != "unsupported" and not isinstance(run[key], MeasuredPoint)
        ]
        if lines:
            axis.text(group, 0, "\n".join(lines), rotation=90, ha="center", va="bottom", fontsize=SMALL)


def _finding(runs: Sequence[Run], keys: Sequence[str], over: str) -> list[str]:
    """How fast ours are, in the geometric mean of all workloads."""
    means = []
    for key in (key for key in keys[::-1] if (key, over) in RATIOS):
        mean = speedup_interval(both, key, over) if (both := [run for run in runs if _speed(over)(run, key)]) else None
        if mean is not None:
            means.append(f"{label_and_style(key)[0].removeprefix('Triton-FA3 ')} {mean[0]:.2f} x")
    return [f"Speed over {label_and_style(over)[0]}, geometric mean: {', '.join(means)}"] if means else []


def _explained(points: Sequence[Point], *, in_turn: bool) -> list[str]:
    """What a reader must know to read the lines; all numbers are the record's."""
    measured = [point for point in points if isinstance(point, MeasuredPoint)]
    if not measured:
        return []
    old = any(point.settling is None for point in measured)
    whiskers = "95 % interval" if old else "where a second run falls 19 times in 20"
    taken = "all of a workload interleaved" if in_turn else "those of a workload are of two runs"
    kinds = ", ".join(dict.fromkeys(point.inputs for point in measured))
    lines = [f"Medians on {kinds} random inputs, {taken}; whiskers: {whiskers}."]
    if in_turn:
        lines.append("Single calls: from Python, without a CUDA graph.")
    clocks: dict[str, list[int]] = {}
    for point in measured:
        clocks.setdefault(point.run, []).extend(point.device_states.sm_mhz)
    medians = [statistics.median(clock) for clock in clocks.values() if clock]
    capped = Counter("SW_POWER_CAP" in reasons for p in measured for reasons in p.device_states.throttle)
    if medians:
        lines.append(
            f"The power cap held the clock down in {capped[True] / capped.total():.0%} of the rounds (median clock of "
            f"a workload: {min(medians):.0f} to {max(medians):.0f} MHz), for cuBLAS too, which is therefore no ceiling."
        )
    return lines


def _versions(environments: dict[str, Environment]) -> list[str]:
    parts = {
        f"torch {e.torch}, triton {e.triton}, cuDNN {e.cudnn}, fa3-fwd {e.fa3_fwd}, driver {e.driver}"
        for e in environments.values()
    }
    return ["; ".join(sorted(parts)) + "."] if parts else []
