"""What tracing costs, beside the paper's Fig. 13. Reads records, writes PDF and PNG."""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kperf.plots.style import (
    BLUE,
    GREEN,
    ORANGE,
    PAGE_WIDTH,
    SKY,
    SMALL,
    VERMILION,
    footnote,
    headline,
    save,
)
from kperf.studies.fig13 import FIG13, PAPER_MEAN, PAPER_WORST, KernelCost
from kperf.studies.overhead import WORDS, Cost

MEMORIES = {"shared": (BLUE, "events in shared memory"), "device": (ORANGE, "events in device memory")}
VARIANTS = (SKY, GREEN)


def draw(costs: Sequence[KernelCost], choices: Mapping[str, Sequence[Cost]], where: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(costs, choices, where), out)


def figure(costs: Sequence[KernelCost], choices: Mapping[str, Sequence[Cost]], where: str) -> Figure:
    """Left a bar a kernel, the paper's four first, with its mean and worst; right the choices of each variant."""
    made, (left, right) = plt.subplots(1, 2, figsize=(PAGE_WIDTH, 4.4), layout="constrained")
    _kernels(left, costs)
    _choices(right, choices)
    headline(made, [*_finding(costs), where], *left.get_legend_handles_labels())
    footnote(
        made,
        [
            "Time of the instrumented over the original kernel, interleaved, less 1: with all events; ticks: of passes "
            "with a few events each. Bold: our versions of the paper's four kernels. Right: other ways to "
            "trace both schedules of attention; hollow bars order their instructions otherwise than the original."
        ],
    )
    return made


def _finding(costs: Sequence[KernelCost]) -> list[str]:
    """What tracing the paper's kernels costs, as far as they are recorded, beside the paper's number."""
    ours = [cost.ratio - 1 for cost in costs if cost.kernel in FIG13]
    if not ours:
        return ["What tracing costs"]
    kernels = f"{len(ours)} of the paper's {len(FIG13)} kernels" if len(ours) < len(FIG13) else "the paper's kernels"
    return [f"Tracing costs {statistics.fmean(ours):.1%} in the mean of {kernels}; the paper: {PAPER_MEAN:.1%}"]


def _kernels(axis: Axes, costs: Sequence[KernelCost]) -> None:
    for memory, (colour, label) in MEMORIES.items():
        of_memory = [(place, cost) for place, cost in enumerate(costs) if cost.memory == memory]
        if of_memory:
            axis.barh(
                [place for place, _ in of_memory],
                [100 * (cost.ratio - 1) for _, cost in of_memory],
                color=colour,
                label=label,
            )
    for place, cost in enumerate(costs):
        axis.annotate(
            f"{100 * (cost.ratio - 1):.1f}", (1, place), xycoords=axis.get_yaxis_transform(), xytext=(20, 0),
            textcoords="offset points", ha="right", va="center",
        )  # fmt: skip
    ticks = [(100 * (ratio - 1), place) for place, cost in enumerate(costs) for ratio in cost.several]
    if ticks:
        x, y = zip(*ticks, strict=True)
        axis.scatter(x, y, marker="|", s=22, color="black", lw=0.8, zorder=3, label="passes")
    for value, style, statistic, side in ((PAPER_MEAN, "-", "mean", "right"), (PAPER_WORST, "--", "worst", "left")):
        axis.axvline(100 * value, color=VERMILION, lw=0.9, ls=style, zorder=0)
        axis.annotate(
            f"paper's {statistic}: {100 * value:g} %", (100 * value, 1), xycoords=axis.get_xaxis_transform(),
            xytext=(6 if side == "right" else -6, 2), textcoords="offset points", color=VERMILION, ha=side, va="bottom",
        )  # fmt: skip
    axis.set_yticks(range(len(costs)), [cost.kernel for cost in costs])
    for tick, cost in zip(axis.get_yticklabels(), costs, strict=True):
        tick.set_fontweight("bold" if cost.kernel in FIG13 else "normal")
    axis.invert_yaxis()
    axis.margins(x=0.02)
    axis.set_title("tracing makes a launch slower by, %", loc="left", fontsize=SMALL, fontweight="bold", pad=16)


def _choices(axis: Axes, choices: Mapping[str, Sequence[Cost]]) -> None:
    names = list(dict.fromkeys(cost.choice for costs in choices.values() for cost in costs))
    width = 0.8 / max(len(choices), 1)
    for number, (kernel, costs) in enumerate(choices.items()):
        colour = VARIANTS[number % len(VARIANTS)]
        for cost in costs:
            place, percent = names.index(cost.choice), 100 * (cost.ratio - 1)
            height = place + (number - (len(choices) - 1) / 2) * width
            axis.barh(height, percent, width, color=colour if cost.same_order else "white", edgecolor=colour)
            if place == 0:  # each kernel's bars are named once, where the first ends
                axis.annotate(kernel, (max(percent, 0), height), xytext=(4, 0), textcoords="offset points", va="center")
    axis.set_yticks(range(len(names)), [WORDS.get(name, name) for name in names])
    axis.invert_yaxis()
    axis.set_title("other ways to trace, %", loc="left", fontsize=SMALL, fontweight="bold", pad=16)
