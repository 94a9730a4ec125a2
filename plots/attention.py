"""Implementations of attention over seq_len: TFLOPS, and peak memory. Reads results, writes PDF and PNG."""

from collections.abc import Callable, Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from kperf.bench.points import Key, MeasuredPoint, Point, Run
from kperf.plots.style import GREY, PAGE_WIDTH, SMALL, compact, footnote, headline, label_and_look, save

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
        _lines(axis, runs, keys, backward, lambda point: point.tflops)
        axis.set_ylim(bottom=0)
        axis.set_ylabel("TFLOPS")
    explained = (
        "Replays of CUDA graphs with a cold L2, all implementations of a seq_len in turn in the same rounds, medians; "
        "each was right before it was timed. A backward pass counts five products where a forward pass counts two."
    )
    return _finished(made, keys, title, [explained, *notes], [])


def memory_figure(runs: dict[Key, Run], keys: Sequence[str], title: Sequence[str], notes: Sequence[str]) -> Figure:
    """The same of peak memory, both axes logarithmic, with slopes to read them by; the caller closes it."""
    made, axes = _figure(runs)
    for axis, backward in zip(axes, _passes(runs), strict=True):
        _lines(axis, runs, keys, backward, lambda point: point.peak_bytes)
        axis.set_yscale("log")
        axis.yaxis.set_major_formatter(lambda value, _: in_bytes(value))
        axis.set_ylabel("peak memory beyond q, k, v")
        _slopes(axis)
        _out_of_memory(axis, runs, keys, backward)
    explained = (
        "The most that torch's allocator holds during one call beyond what it held before; of a backward pass with its "
        "forward pass, whose saved tensors it reads. A cross at the top: out of memory."
    )
    slopes = [Line2D([], [], color=GREY, linestyle=style, linewidth=0.8) for style in (":", "--")]
    return _finished(made, keys, title, [explained, *notes], list(zip(slopes, ("O(N)", "O(N²)"), strict=True)))


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
    found = [(w.seq_len, run[key]) for (_, w), run in runs.items() if w.backward is backward and key in run]
    return sorted(found, key=lambda place: place[0])


_Value = Callable[[MeasuredPoint], float | None]


def _lines(axis: Axes, runs: dict[Key, Run], keys: Sequence[str], backward: bool, value: _Value) -> None:
    for key in keys:
        label, look = label_and_look(key)
        found = [
            (seq_len, number)
            for seq_len, point in _of_pass(runs, key, backward)
            if isinstance(point, MeasuredPoint) and (number := value(point)) is not None
        ]
        if found:
            axis.plot(*zip(*found, strict=True), color=look.colour, marker=look.marker, markersize=4, linewidth=1.1,
                      label=label)  # fmt: skip


def _slopes(axis: Axes) -> None:
    """Lines of memory that grows with seq_len and with its square, from the lower left corner."""
    low, high = axis.get_xlim()
    bottom, top = axis.get_ylim()
    for power, style in ((1, ":"), (2, "--")):
        axis.plot([low, high], [bottom, bottom * (high / low) ** power], color=GREY, linestyle=style, linewidth=0.8)
    axis.set_xlim(low, high)
    axis.set_ylim(bottom, top)


def _out_of_memory(axis: Axes, runs: dict[Key, Run], keys: Sequence[str], backward: bool) -> None:
    """Crosses above all that fits, a row an implementation."""
    bottom, top = axis.get_ylim()
    row = (top / bottom) ** 0.05
    for key in keys:
        _, look = label_and_look(key)
        seq_lens = [seq_len for seq_len, point in _of_pass(runs, key, backward) if point.status == "oom"]
        if seq_lens:
            top *= row
            axis.plot(seq_lens, [top] * len(seq_lens), color=look.colour, marker="x", linestyle="none", markersize=5,
                      markeredgewidth=1.6)  # fmt: skip
    axis.set_ylim(bottom, top * row)


def _finished(
    made: Figure,
    keys: Sequence[str],
    title: Sequence[str],
    notes: Sequence[str],
    more: Sequence[tuple[Artist, str]],
) -> Figure:
    """With title, legend and what has to be said."""
    handles: dict[str, Artist] = {}
    for axis in made.axes:
        for handle, label in zip(*axis.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ordered = [label for label, _ in map(label_and_look, keys) if label in handles]
    headline(
        made,
        title,
        [*(handles[label] for label in ordered), *(handle for handle, _ in more)],
        [*ordered, *(label for _, label in more)],
    )
    footnote(made, notes)
    return made
