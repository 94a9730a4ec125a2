"""Implementations of attention over seq_len: TFLOPS, and peak memory. Reads results, writes PDF and PNG."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from kperf.bench.points import Key, MeasuredPoint, Point, Run
from kperf.plots.style import (
    BLACK,
    GREY,
    LINES,
    PAGE_WIDTH,
    SMALL,
    LineEnd,
    compact,
    footnote,
    headline,
    label_and_style,
    name_ends,
    readable,
    save,
)

_SLOPES = "#666666"
_UNITS = ("B", "KB", "MB", "GB", "TB")


def draw(
    runs: dict[Key, Run], keys: Sequence[str], title: Sequence[str], notes: Sequence[str], out: Path
) -> list[Path]:
    """Write `out`, the TFLOPS, and `out`_memory as PDF and PNG; `title`'s second line says where they come from."""
    beside = out.with_name(f"{out.name}_memory")
    return [
        *save(tflops_figure(runs, keys, title, notes), out),
        *save(memory_figure(runs, keys, title, notes), beside),
    ]


def in_bytes(number: float) -> str:
    """Three digits and a unit of a thousand: 8.59 GB."""
    power = 0
    while number >= 999.5 and power + 1 < len(_UNITS):
        number /= 1000
        power += 1
    return f"{number:.3g} {_UNITS[power]}"


def tflops_figure(runs: dict[Key, Run], keys: Sequence[str], title: Sequence[str], notes: Sequence[str]) -> Figure:
    """A panel a pass, a line an implementation; the caller closes it."""
    made, axes = _figure(runs)
    for axis, backward in zip(axes, _passes(runs), strict=True):
        ends = _lines(axis, runs, keys, backward, lambda point: point.tflops)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("TFLOPS")
        name_ends(axis, ends)
    explained = (
        "Replays of CUDA graphs with a cold L2, all implementations of a length interleaved, medians. A backward pass "
        "counts five MMAs where a forward pass counts two."
    )
    return _finished(made, [_fastest(runs, keys), *title], [explained, *notes])


def memory_figure(runs: dict[Key, Run], keys: Sequence[str], title: Sequence[str], notes: Sequence[str]) -> Figure:
    """The same of peak memory, both axes logarithmic, with slopes to read them by; the caller closes it."""
    made, axes = _figure(runs)
    for axis, backward in zip(axes, _passes(runs), strict=True):
        ends = _lines(axis, runs, keys, backward, lambda point: point.peak_bytes)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: in_bytes(value))
        axis.yaxis.set_minor_formatter(NullFormatter())  # else its ticks have numbers where there are few powers of ten
        axis.set_ylabel("peak memory beyond q, k, v")
        slopes = _slopes(axis)
        _out_of_memory(axis, runs, keys, backward)
        name_ends(axis, [*_bundled(ends), *slopes])
    explained = (
        "The most that torch's allocator holds during one call beyond what it held before; of a backward pass with its "
        "forward pass, whose saved tensors it reads."
    )
    return _finished(made, [_growth(runs, keys), *title], [explained, *notes])


def _figure(runs: dict[Key, Run]) -> tuple[Figure, Sequence[Axes]]:
    made = plt.figure(figsize=(PAGE_WIDTH, 5.4), layout="constrained")
    passes = _passes(runs)
    axes = made.subplots(1, len(passes), squeeze=False)[0]
    for axis, backward in zip(axes, passes, strict=True):
        seq_lens = sorted({workload.seq_len for _, workload in runs})
        axis.set_xscale("log", base=2)
        axis.set_xticks(seq_lens, [compact(seq_len) for seq_len in seq_lens])
        axis.minorticks_off()
        axis.set_xlabel("sequence length")
        axis.set_title("backward" if backward else "forward", loc="left", fontsize=SMALL, fontweight="bold")
        axis.grid(color="#d8d8d8", linewidth=0.5)
        axis.set_axisbelow(True)
    return made, axes


def _passes(runs: dict[Key, Run]) -> list[bool]:
    return sorted({workload.backward for _, workload in runs})


def _of_pass(runs: dict[Key, Run], key: str, backward: bool) -> list[tuple[int, Point]]:
    """seq_len and point of one implementation, from the shortest."""
    points = [(w.seq_len, run[key]) for (_, w), run in runs.items() if w.backward is backward and key in run]
    return sorted(points, key=lambda place: place[0])


_Value = Callable[[MeasuredPoint], float | None]


def _values(runs: dict[Key, Run], key: str, backward: bool, value: _Value) -> list[tuple[int, float]]:
    """seq_len and value of an implementation's points."""
    return [
        (seq_len, number)
        for seq_len, point in _of_pass(runs, key, backward)
        if isinstance(point, MeasuredPoint) and (number := value(point)) is not None
    ]


def _lines(axis: Axes, runs: dict[Key, Run], keys: Sequence[str], backward: bool, value: _Value) -> list[LineEnd]:
    ends = []
    for key in keys:
        label, style = label_and_style(key)
        if points := _values(runs, key, backward, value):
            axis.plot(
                *zip(*points, strict=True), color=readable(style.colour, LINES), marker=style.marker, markersize=4,
                linewidth=1.1, label=label,
            )  # fmt: skip
            ends.append(LineEnd(label, *points[-1], style.colour))
    return ends


def _bundled(ends: Sequence[LineEnd]) -> list[LineEnd]:
    """Lines that end within 10 % of each other have one name."""
    bundles: list[list[LineEnd]] = []
    for end in sorted(ends, key=lambda end: (end.x, end.y)):
        if bundles and bundles[-1][0].x == end.x and end.y <= 1.1 * bundles[-1][0].y:
            bundles[-1].append(end)
        else:
            bundles.append([end])
    order = [end.label for end in ends]
    return [bundle[0] if len(bundle) == 1 else _one(bundle, order) for bundle in bundles]


def _one(bundle: Sequence[LineEnd], order: Sequence[str]) -> LineEnd:
    """A bundle by its names, or by how many it has."""
    names = sorted((end.label for end in bundle), key=order.index)
    of_many = f"all {len(names)}" if len(names) == len(order) else f"the {len(names)} others"
    label = ", ".join(names) if len(names) < 3 else of_many
    return replace(bundle[0], label=label, colour=BLACK)


def _slopes(axis: Axes) -> list[LineEnd]:
    """Lines of memory that grows with seq_len and with its square, from the lower left corner, up to the panel's edge.

    A line that ends at the top has its name there; the others' ends are returned.
    """
    low, high = axis.get_xlim()
    bottom, top = axis.get_ylim()
    ends = []
    for power, style, label in ((1, ":", "O(N)"), (2, "--", "O(N²)")):
        right = min(high, low * (top / bottom) ** (1 / power))
        end = bottom * (right / low) ** power
        axis.plot([low, right], [bottom, end], color=GREY, linestyle=style, linewidth=0.8)
        if right < low * (high / low) ** 0.9:
            axis.annotate(
                label, (right, end), xytext=(-5, -3), textcoords="offset points", ha="right", va="top",
                color=_SLOPES, fontsize=SMALL,
            )  # fmt: skip
        else:
            ends.append(LineEnd(label, right, end, _SLOPES))
    axis.set_xlim(low, high)
    axis.set_ylim(bottom, top)
    return ends


def _out_of_memory(axis: Axes, runs: dict[Key, Run], keys: Sequence[str], backward: bool) -> None:
    """A band above all that fits, which says who does not from which length on."""
    failed: dict[int, list[str]] = {}
    for key in keys:
        seq_lens = [seq_len for seq_len, point in _of_pass(runs, key, backward) if point.status == "oom"]
        if seq_lens:
            failed.setdefault(min(seq_lens), []).append(label_and_style(key)[0])
    if not failed:
        return
    bottom, top = axis.get_ylim()
    above = top * (top / bottom) ** 0.1
    axis.axhspan(top, above, color="#eeeeee", zorder=0)
    text = "\n".join(f"out of memory from {compact(seq_len)}:\n{', '.join(who)}" for seq_len, who in failed.items())
    axis.text(
        0.02, (top * above) ** 0.5, text, transform=axis.get_yaxis_transform(), va="center",
        fontsize=SMALL,
    )  # fmt: skip
    axis.set_ylim(bottom, above)


def _fastest(runs: dict[Key, Run], keys: Sequence[str]) -> str:
    """Who is the fastest in each pass."""
    fastest, always = {}, True
    for backward in _passes(runs):
        best: dict[int, tuple[float, str]] = {}
        for key in keys:
            for seq_len, tflops in _values(runs, key, backward, lambda point: point.tflops):
                best[seq_len] = max(best.get(seq_len, (0.0, "")), (tflops, label_and_style(key)[0]))
        if best:
            fastest["backward" if backward else "forward"] = best[max(best)][1]
            always = always and len({label for _, label in best.values()}) == 1
    where = "every length" if always else f"{compact(max(workload.seq_len for _, workload in runs))}"
    return f"Fastest at {where}: {', '.join(f'{label} {which}' for which, label in fastest.items())}"


def _growth(runs: dict[Key, Run], keys: Sequence[str]) -> str:
    """Whose memory grows faster than the length."""
    steep = []
    for key in keys:
        points = _values(runs, key, False, lambda point: point.peak_bytes)
        if len(points) > 1 and points[-1][1] / points[0][1] > (points[-1][0] / points[0][0]) ** 1.5:
            steep.append(label_and_style(key)[0])
    square = f" With its square: {', '.join(steep)}." if steep else ""
    return f"Memory grows with the sequence length.{square}"


def _finished(made: Figure, title: Sequence[str], notes: Sequence[str]) -> Figure:
    """With title and notes."""
    headline(made, title, [], [])
    footnote(made, notes)
    return made
