"""Where the time of a compiled block goes, kernel by kernel, and how much of it its ceiling takes. Reads records."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from kperf.plots.style import BLUE, ORANGE, PAGE_WIDTH, SMALL, footnote, headline, save
from kperf.studies.inductor import InductorRow, grouped

_NAME = 40
"""Letters of a kernel's name that there is room for."""
_ABOVE_CEILING = {"tensor cores": "#f3dca0", "memory": "#b5d6ea"}
_AT_CEILING = {"tensor cores": ORANGE, "memory": BLUE}


def draw(rows: Sequence[InductorRow], stamp: str, out: Path) -> list[Path]:
    """Write `figure` as PDF and PNG; `out` without a suffix. Returns the files written."""
    return save(figure(rows, stamp), out)


def figure(rows: Sequence[InductorRow], stamp: str) -> Figure:
    """A panel a block, a bar a kernel in the order of the program: its time, the least that it could take dark."""
    blocks = list(dict.fromkeys(row.block for row in rows))
    groups = {block: grouped([row for row in rows if row.block == block and row.time_us]) for block in blocks}
    heights = [max(len(kernels), 1) for kernels in groups.values()]
    made, axes = plt.subplots(
        len(blocks), 1, figsize=(PAGE_WIDTH, 1.5 + 0.2 * sum(heights) + 0.4 * len(blocks)), layout="constrained",
        squeeze=False, height_ratios=heights,
    )  # fmt: skip
    for axis, block in zip(axes[:, 0], blocks, strict=True):
        _bars(axis, groups[block])
        whole = sum(row.time_us or 0.0 for group in groups[block] for row in group)
        axis.set_title(f"{block} block, {whole / 1e3:.2f} ms of kernels", loc="left", fontsize=SMALL, fontweight="bold")
    handles = [Patch(color=_AT_CEILING[by]) for by in _AT_CEILING] + [Patch(color="#d8d8d8")]
    labels = ["least time, by the tensor cores", "least time, by memory", "beyond it"]
    headline(made, [_finding(groups), stamp], handles, labels)
    first = rows[0]
    missing = [f"{row.block}, {row.name}: {row.message}" for row in rows if row.message]
    explained = (
        "Least time: MMAs at the rate of cuBLAS, 8192 cubed, beside them, or bytes at the rate of a copy "
        f"({first.copy_gb_per_s / 1e3:.2f} TB/s), whichever takes longer; percent: its share of the time, above "
        "100 % where a kernel beats that rate."
    )
    footnote(made, [explained, *missing])
    return made


def _least(row: InductorRow) -> tuple[str, float]:
    """What bounds a kernel, and the microseconds that it takes at least."""
    mmas, memory = row.at_ceilings_us
    return ("tensor cores", mmas) if mmas > memory else ("memory", memory)


def _finding(groups: Mapping[str, Sequence[Sequence[InductorRow]]]) -> str:
    """How much longer than the least the kernels of each block take together, those that beat it at the least."""
    ratios = []
    for block, kernels in groups.items():
        times = [sum(row.time_us or 0.0 for row in group) for group in kernels]
        least = sum(min(len(group) * _least(group[0])[1], time) for group, time in zip(kernels, times, strict=True))
        if least:
            ratios.append(f"{block} {sum(times) / least:.2f}")
    return f"Kernels of compiled blocks over the least time they could take: {', '.join(ratios)}"


def _bars(axis: Axes, groups: Sequence[Sequence[InductorRow]]) -> None:
    names = []
    for place, group in enumerate(groups):
        time = sum(row.time_us or 0.0 for row in group)
        by, least = _least(group[0])
        axis.barh(place, time, color=_ABOVE_CEILING[by])
        axis.barh(place, min(len(group) * least, time), color=_AT_CEILING[by])
        axis.annotate(
            f"{len(group) * least / time:.0%}", (time, place), xytext=(2, 0), textcoords="offset points", va="center"
        )
        names.append(_short(group[0]) + (f" ({len(group)} x)" if len(group) > 1 else ""))
    axis.set_yticks(range(len(groups)), names, fontsize=SMALL)
    axis.invert_yaxis()
    axis.margins(x=0.08)
    axis.set_xlabel("microseconds")


def _short(row: InductorRow) -> str:
    """Inductor's number is at the end of a name, and what it fuses is in the middle."""
    if row.kind == "extern":
        name = row.name.removeprefix("aten.").removesuffix(".default").removeprefix("_")
        return f"{name} {row.operands}" if len(f"{name} {row.operands}") <= _NAME else name
    name = row.name.removeprefix("triton_").replace("fused__", "").replace("fused_", "")
    return name if len(name) <= _NAME else f"{name[: _NAME - 6]}…{name[-4:]}"
