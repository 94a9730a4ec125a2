"""How right the clock inside of kernels and the models are. Reads records, writes PDF and PNG."""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.plots.style import BLUE, GREEN, ORANGE, PAGE_WIDTH, PURPLE, SMALL, VERMILION, footnote, grid, headline, save
from kperf.studies.accuracy import GOALS, AccuracyRow, LaunchRow, RegionRow, lines
from kperf.studies.models import Prediction

STYLES = {"fma": (BLUE, "o"), "ex2": (ORANGE, "s"), "wgmma": (GREEN, "^"), "spin": (PURPLE, "D")}
"""Instruction -> colour and marker."""
MODELS = {
    "graph": (BLUE, "o", "replay of its graph"),
    "stages": (VERMILION, "s", "another's stage times"),
}


def draw(rows: Sequence[AccuracyRow], modelled: Sequence[Prediction], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, modelled, stamp), out)


def figure(rows: Sequence[AccuracyRow], modelled: Sequence[Prediction], stamp: str) -> Figure:
    """Left the regions of known cycles and the launches, where they are recorded; right each model's error."""
    columns = 2 if rows else 1
    made, axes = plt.subplots(1, columns, figsize=(PAGE_WIDTH, 3.6), layout="constrained", squeeze=False)
    if rows:
        _regions(axes[0, 0], rows)
    _models(axes[0, -1], modelled)
    handles, labels = axes[0, 0].get_legend_handles_labels() if rows else ([], [])
    headline(made, [*_findings(rows, modelled), stamp], handles, labels)
    made_of = (
        "Models: the dependency graph of three CTAs replayed with their work and without their waiting, against their "
        "mean iteration time; the stage times of another kernel, against the median iteration time. Grey is "
        f"{GOALS['model']:.0%}."
    )
    footnote(made, [_launches(rows), made_of] if rows else [made_of])
    return made


def _findings(rows: Sequence[AccuracyRow], modelled: Sequence[Prediction]) -> list[str]:
    """How far off regions and replays are, a line each as far as they are recorded."""
    findings = []
    if errors := {line.instruction: line.error for line in lines(rows)}:
        worst = max(errors, key=lambda name: abs(errors[name]))
        findings.append(f"Regions grow as their known cycles do, within {abs(errors[worst]):.1%} ({worst})")
    if replays := [abs(one.error) for one in modelled if one.model == "graph"]:
        near = sum(error <= GOALS["model"] for error in replays)
        findings.append(
            f"Replays give the iteration time of {near} of {len(replays)} kernels within {GOALS['model']:.0%}"
        )
    return findings


def _regions(axis: Axes, rows: Sequence[AccuracyRow]) -> None:
    """Measured over known cycles, and the line that goes through them."""
    fits = {line.instruction: line for line in lines(rows)}
    for instruction, (colour, marker) in STYLES.items():
        measured = [row for row in rows if isinstance(row, RegionRow) and row.instruction == instruction]
        if not measured:
            continue
        known = np.array([row.known_cycles for row in measured])
        label = instruction
        if line := fits.get(instruction):
            label = f"{instruction}: {line.slope:.4f} x known {line.offset:+.0f}"
        excess = [row.measured_cycles - row.known_cycles for row in measured]
        low = [row.measured_cycles - row.p5 for row in measured]
        high = [row.p95 - row.measured_cycles for row in measured]
        axis.errorbar(known, excess, (low, high), color=colour, marker=marker, ms=3.5, lw=0.8, capsize=1.5, label=label)
    axis.set_xscale("log", base=2)
    axis.set_xlabel("known cycles")
    axis.set_title("measured - known (cycles; 5 % to 95 %)", loc="left", fontsize=SMALL, fontweight="bold")
    grid(axis)


def _launches(rows: Sequence[AccuracyRow]) -> str:
    errors = [f"{row.instruction} {row.error:+.2%}" for row in rows if isinstance(row, LaunchRow)]
    return f"A launch's time from its events, off CUPTI's: {', '.join(errors)}."


def _models(axis: Axes, modelled: Sequence[Prediction]) -> None:
    """A row a kernel, the largest error of the graph below."""
    shown = [prediction for prediction in modelled if prediction.model in MODELS]
    size = {prediction.kernel: abs(prediction.error) for prediction in shown if prediction.model == "graph"}
    kernels = sorted(dict.fromkeys(prediction.kernel for prediction in shown), key=lambda name: size.get(name, 0.0))
    goal = 100 * GOALS["model"]
    axis.axvspan(-goal, goal, color="#e8e8e8", zorder=0)
    axis.axvline(0, color="black", lw=0.6)
    for model, (colour, marker, label) in MODELS.items():
        of_model = [prediction for prediction in shown if prediction.model == model]
        places = [kernels.index(prediction.kernel) for prediction in of_model]
        axis.plot(
            [100 * prediction.error for prediction in of_model], places, marker, color=colour, ms=4.5, label=label
        )
    axis.set_yticks(range(len(kernels)), kernels)
    axis.set_ylim(len(kernels) - 0.5, -0.5)
    axis.legend(loc="best", framealpha=1, edgecolor="#d8d8d8", fancybox=False, fontsize=SMALL)
    axis.set_xlabel("%")
    axis.set_title("predicted iteration time - measured", loc="left", fontsize=SMALL, fontweight="bold")
    axis.grid(axis="x", color="#d8d8d8", linewidth=0.5)
