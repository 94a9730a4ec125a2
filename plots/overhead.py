"""What tracing costs, beside the paper's Fig. 13. Reads records, writes PDF and PNG."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

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
from kperf.studies.overhead import Cost

MEMORIES = {"shared": (BLUE, "records in shared memory"), "device": (ORANGE, "records in device memory")}
VARIANTS = (SKY, GREEN)


def draw(costs: Sequence[KernelCost], choices: Mapping[str, Sequence[Cost]], where: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(costs, choices, where), out)


def figure(costs: Sequence[KernelCost], choices: Mapping[str, Sequence[Cost]], where: str) -> Figure:
    """Left a bar a kernel, the paper's four first, with its mean and worst; right the choices of each variant."""
    made, (left, right) = plt.subplots(1, 2, figsize=(PAGE_WIDTH, 4.4), layout="constrained")
    _kernels(left, costs)
    _choices(right, choices)
    handles, labels = left.get_legend_handles_labels()
    more = right.get_legend_handles_labels()
    headline(made, ["What tracing costs", where], [*handles, *more[0]], [*labels, *more[1]])
    footnote(
        made,
        [
            "Traced over plain time, in turn, less 1: of a launch with all records; ticks: of passes with a few "
            "records each. Bold: the paper's four kernels, as far as they are ours. Lines: the paper's mean and the "
            "bound of its worst. Right: other ways to record both schedules of attention; hollow bars order their "
            "instructions otherwise than the plain kernel."
        ],
    )
    return made


def _kernels(axis: Axes, costs: Sequence[KernelCost]) -> None:
    for memory, (colour, label) in MEMORIES.items():
        mine = [(place, cost) for place, cost in enumerate(costs) if cost.memory == memory]
        if mine:
            axis.barh(
                [place for place, _ in mine], [100 * (cost.ratio - 1) for _, cost in mine], color=colour, label=label
            )
    for place, cost in enumerate(costs):
        number = axis.annotate(
            f"{100 * (cost.ratio - 1):.1f}", (100 * (cost.ratio - 1), place), xytext=(2, 0),
            textcoords="offset points", va="center",
        )  # fmt: skip
        number.set_path_effects([withStroke(linewidth=1.5, foreground="white")])
    ticks = [(100 * (ratio - 1), place) for place, cost in enumerate(costs) for ratio in cost.several]
    if ticks:
        x, y = zip(*ticks, strict=True)
        axis.scatter(x, y, marker="|", s=22, color="black", lw=0.8, zorder=3, label="passes")
    for value, style in ((PAPER_MEAN, "-"), (PAPER_WORST, "--")):
        axis.axvline(100 * value, color=VERMILION, lw=0.9, ls=style, label=f"the paper: {100 * value:g} %")
    axis.set_yticks(range(len(costs)), [cost.kernel for cost in costs])
    for tick, cost in zip(axis.get_yticklabels(), costs, strict=True):
        tick.set_fontweight("bold" if cost.kernel in FIG13 else "normal")
    axis.invert_yaxis()
    axis.margins(x=0.12)
    axis.set_title("slower by, %", loc="left", fontsize=SMALL, fontweight="bold")


def _choices(axis: Axes, choices: Mapping[str, Sequence[Cost]]) -> None:
    names = list(dict.fromkeys(cost.choice for costs in choices.values() for cost in costs))
    width = 0.8 / max(len(choices), 1)
    for number, (kernel, costs) in enumerate(choices.items()):
        colour = VARIANTS[number % len(VARIANTS)]
        for cost in costs:
            axis.barh(
                names.index(cost.choice) + (number - (len(choices) - 1) / 2) * width, 100 * (cost.ratio - 1), width,
                color=colour if cost.same_order else "white", edgecolor=colour,
            )  # fmt: skip
        axis.barh([0], [0], color=colour, label=kernel)
    axis.set_yticks(range(len(names)), names)
    axis.invert_yaxis()
    axis.set_title("other ways to record, %", loc="left", fontsize=SMALL, fontweight="bold")
