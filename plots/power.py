"""Each implementation alone and sustained: speed over FA3, TFLOPS, clock, TFLOPS a watt. Writes PDF and PNG."""

import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.attention.implementations import FIG12, RATIOS
from kperf.bench.points import CUBLAS, PowerPoint, PowerSample
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

REFERENCE = "fa3"
"""Speed is shown over this."""
_Value = Callable[[PowerSample], float]
_ROW = 0.062
"""Height of a line of type, of a panel's."""

PANELS: tuple[tuple[str, _Value], ...] = (
    ("TFLOPS", lambda sample: sample.tflops),
    ("SM clock (MHz)", lambda sample: sample.sm_mhz),
    ("TFLOPS a watt", lambda sample: sample.tflops_per_watt),
)
"""What is drawn after the speed: its name, and how it is read from a sample."""


def draw(runs: Sequence[Sequence[PowerPoint]], stamp: str, notes: Sequence[str], out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(runs, stamp, notes), out)


def figure(runs: Sequence[Sequence[PowerPoint]], stamp: str, notes: Sequence[str]) -> Figure:
    """Speed over FA3, then a panel each for `PANELS`: a labelled line an implementation, whiskers over its passes.

    `notes` stand below.
    """
    made = plt.figure(figsize=(PAGE_WIDTH, 6.6), layout="constrained")
    axes = made.subplots(2, 2).flat
    by_key = [{point.implementation: [*point.samples] for point in run} for run in runs]
    ticks = [compact(run[0].seq_len) for run in runs]
    over = f"speed over {label_and_style(REFERENCE)[0]}"
    _panel(axes[0], over, ticks, [_speeds(run) for run in by_key])
    axes[0].axhline(1, color=BLACK, linewidth=0.6, zorder=1)
    for axis, (name, value) in zip(axes[1:], PANELS, strict=True):
        values = [{key: [value(sample) for sample in samples] for key, samples in run.items()} for run in by_key]
        _panel(axis, name, ticks, values)
    first = runs[0][0]
    mask = "causal" if first.causal else "non-causal"
    title = f"Attention forward, {mask}, {first.dtype}, head_dim {first.head_dim}, 16 heads, batch {first.batch}"
    headline(made, [*_finding(by_key), title, f"each alone and sustained, {stamp}"], [], [])
    watts = [sample.power_w for run in runs for point in run for sample in point.samples]
    explained = (
        f"Median and range of {len(first.samples)} passes of {first.seconds:g} s each, in rotation, at "
        f"{min(watts):.0f} to {max(watts):.0f} W. At the power cap a kernel that takes less energy for a FLOP gets a "
        "higher clock, and one that does more in a cycle a lower one. TFLOPS a watt is FLOPs a picojoule."
    )
    footnote(made, [explained, *notes])
    return made


def _speeds(run: dict[str, list[PowerSample]]) -> dict[str, list[float]]:
    """Of each implementation of attention, pass by pass; empty without the reference."""
    reference = run.get(REFERENCE, [])
    return {
        key: [mine.tflops / theirs.tflops for mine, theirs in zip(samples, reference, strict=True)]
        for key, samples in run.items()
        if key != CUBLAS and len(samples) == len(reference)
    }


def _panel(axis: Axes, name: str, ticks: Sequence[str], values: Sequence[dict[str, list[float]]]) -> None:
    ends = []
    for key in (*FIG12, CUBLAS):
        points = [(group, run[key]) for group, run in enumerate(values) if run.get(key)]
        if not points:
            continue
        label, style = label_and_style(key)
        xs, middles = [group for group, _ in points], [statistics.median(numbers) for _, numbers in points]
        low = [at - min(numbers) for at, (_, numbers) in zip(middles, points, strict=True)]
        high = [max(numbers) - at for at, (_, numbers) in zip(middles, points, strict=True)]
        compared = (key, REFERENCE) in RATIOS
        axis.errorbar(
            xs, middles, yerr=(low, high), label=label, color=readable(style.colour, LINES), marker=style.marker,
            markersize=3.5, linewidth=1.6 if compared else 0.8, elinewidth=0.8, capsize=1.5,
        )  # fmt: skip
        ends.append(LineEnd(label.removeprefix("Triton-FA3 "), xs[-1], middles[-1], style.colour))
    axis.set_xticks(range(len(ticks)), ticks)
    axis.set_xlabel("sequence length")
    axis.set_title(name, loc="left", fontsize=SMALL, fontweight="bold")
    grid(axis)
    name_ends(axis, ends, _ROW)


def _finding(runs: Sequence[dict[str, list[PowerSample]]]) -> list[str]:
    """How fast ours are beside the reference, in the geometric mean of the workloads that have both."""
    means = []
    for key in (key for key in FIG12[::-1] if (key, REFERENCE) in RATIOS):
        ratios = [
            statistics.median(s.tflops for s in run[key]) / statistics.median(s.tflops for s in run[REFERENCE])
            for run in runs
            if key in run and REFERENCE in run
        ]
        if ratios:
            label = label_and_style(key)[0].removeprefix("Triton-FA3 ")
            means.append(f"{label} {statistics.geometric_mean(ratios):.2f} x")
    over = f"Speed over {label_and_style(REFERENCE)[0]} at the power cap, geometric mean"
    return [f"{over}: {', '.join(means)}"] if means else []
