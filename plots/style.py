"""What the figures share: the style, and how they are written."""

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.text import Text
from matplotlib.ticker import LogFormatter
from PIL import Image

from kperf.attention.implementations import IMPLEMENTATIONS
from kperf.attention.style import Style
from kperf.bench.points import CUBLAS
from kperf.record.files import write_atomically

PAGE_WIDTH = 7.0
"""Inches: both columns of a paper. Figures of this width are printed as they are."""

SMALL = 7.0
"""Points: the smallest type."""

COLOURS = 96
"""Of a PNG. A figure has a dozen, and shades of them at the edges of what is drawn."""

_SETTINGS: dict[Any, Any] = {
    "font.size": SMALL,
    "pdf.fonttype": 42,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "hatch.linewidth": 0.7,
}
plt.rcParams.update(_SETTINGS)

# Okabe and Ito's colours, told apart with any colour vision.
BLUE, SKY, GREEN, YELLOW = "#0072b2", "#56b4e9", "#009e73", "#f0e442"
ORANGE, VERMILION, PURPLE, GREY, BLACK = "#e69f00", "#d55e00", "#cc79a7", "#999999", "#000000"


@contextmanager
def own_settings() -> Iterator[None]:
    """Within it, matplotlib has its defaults and ours, whatever a script has set in this process."""
    with plt.rc_context():
        plt.rcdefaults()
        plt.rcParams.update(_SETTINGS)
        yield


def label_and_style(key: str) -> tuple[str, Style]:
    """What an implementation is called and how its bar is drawn, from where it is registered."""
    if key == CUBLAS:
        return "cuBLAS, 8192 cubed", Style(BLACK)
    item = IMPLEMENTATIONS[key]
    assert item.style is not None, f"{key} has no bar"
    return item.label, item.style


def compact(number: int) -> str:
    """A power of two as ticks have it: 512, 16k."""
    return f"{number // 1024}k" if number >= 1024 else str(number)


def grid(axis: Axes) -> None:
    """Light lines to read heights by, behind everything."""
    axis.grid(axis="y", color="#d8d8d8", linewidth=0.5)
    axis.set_axisbelow(True)


def value_above(axis: Axes, x: float, y: float, text: str, *, upright: bool) -> None:
    """A bar's number above it, readable over lines; `upright` where it is wider than the bar."""
    made = axis.annotate(
        text, (x, y), xytext=(0, 2), textcoords="offset points", rotation=90 if upright else 0, ha="center", va="bottom"
    )
    made.set_path_effects([withStroke(linewidth=1.5, foreground="white")])


@dataclass(frozen=True)
class LineEnd:
    """Where a line ends, in the units of its panel, and what it is called."""

    label: str
    x: float
    y: float
    colour: str


def name_ends(axis: Axes, ends: Sequence[LineEnd], row: float = 0.042) -> None:
    """Each line's name right of the panel, as high as its end or beside its neighbours' names, and a thin line to it.

    `row`: height of a line of type as a share of the panel's.
    """
    axis.get_ylim()  # which settles the panel's limits
    to_panel = axis.transData + axis.transAxes.inverted()
    rows = [(float(to_panel.transform((end.x, end.y))[1]), end) for end in ends]
    rows.sort(key=lambda placed: placed[0])
    places = [min(place, 1.0) for place, _ in rows]
    for n in range(1, len(places)):
        places[n] = max(places[n], places[n - 1] + row)
    for n in reversed(range(len(places))):
        above = places[n + 1] - row if n + 1 < len(places) else 1.0
        places[n] = min(places[n], above)
    for place, (_, end) in zip(places, rows, strict=True):
        axis.annotate(
            end.label, (end.x, end.y), xytext=(1.06, place), textcoords="axes fraction", annotation_clip=False,
            color=readable(end.colour), va="center", fontsize=SMALL,
            arrowprops={
                "arrowstyle": "-", "linestyle": ":", "linewidth": 0.8, "color": readable(end.colour, LINES),
                "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 2,
            },
        )  # fmt: skip


LINES, TYPE = 3.0, 4.5
"""Least contrast of what is drawn on white (WCAG 2, 1.4.11 and 1.4.3)."""


def readable(colour: str, contrast: float = TYPE) -> str:
    """A colour of this contrast on white: its own, or darkened."""
    red, green, blue = to_rgb(colour)
    while 1.05 / (_luminance(red, green, blue) + 0.05) < contrast:
        red, green, blue = 0.95 * red, 0.95 * green, 0.95 * blue
    return to_hex((red, green, blue))


def _luminance(*channels: float) -> float:
    """Relative luminance of sRGB (WCAG 2)."""
    linear = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels)
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def headline(figure: Figure, lines: Sequence[str], handles: Sequence[Artist], labels: Sequence[str]) -> None:
    """What the figure shows, in a second line where it comes from, and below them the legend."""
    legend = figure.legend(
        handles, labels, title="\n".join(fill(line, 88) for line in lines), ncols=5, loc="outside upper left",
        alignment="left", frameon=False, handlelength=1.6, fontsize=SMALL,
        title_fontproperties={"size": 8.5, "weight": "bold"},
    )  # fmt: skip
    legend.get_title().set_linespacing(1.3)


def footnote(figure: Figure, lines: Sequence[str]) -> None:
    """Notes below, wrapped to the figure's width."""
    columns = int(figure.get_figwidth() * 19)  # characters an inch in this size of type
    text = "\n".join(fill(line, columns) for line in lines)
    figure.supxlabel(text, fontsize=SMALL, color="#333333", x=0.01, ha="left", linespacing=1.25)


def save(figure: Figure, out: Path) -> list[Path]:
    """Write `out` as PDF and PNG, whole or not at all and the same bytes for the same figure; closes it."""
    written = []
    for suffix in ("pdf", "png"):
        path = out.with_suffix(f".{suffix}")
        write_atomically(path, content(figure, suffix, dpi=200))
        written.append(path)
    plt.close(figure)
    return written


def content(figure: Figure, suffix: str, dpi: int) -> bytes:
    """What a file of the figure holds: whenever it is drawn the same."""
    _as_written(figure)
    if (layout := figure.get_layout_engine()) is not None:  # once: laid out anew for each file, the files would differ
        layout.execute(figure)
        figure.set_layout_engine("none")
    stream = io.BytesIO()
    metadata = {"pdf": {"CreationDate": None}, "png": {"Software": None}}[suffix]
    figure.savefig(stream, format=suffix, dpi=dpi, metadata=metadata)
    return quantised(stream.getvalue()) if suffix == "png" else stream.getvalue()


def quantised(png: bytes) -> bytes:
    """The picture in `COLOURS` colours, a third of the bytes: the most frequent as they are, others as the nearest."""
    with Image.open(io.BytesIO(png)) as opened:
        picture = opened.convert("RGB")
    numbers = np.asarray(picture).astype(np.uint32) @ np.array([1 << 16, 1 << 8, 1], np.uint32)
    numbers_there, place, count = np.unique(numbers, return_inverse=True, return_counts=True)
    colours = np.stack([numbers_there >> 16, numbers_there >> 8 & 255, numbers_there & 255], axis=1).astype(np.uint8)
    frequent = colours[np.argsort(-count, kind="stable")[: COLOURS // 2]]
    spread = picture.quantize(COLOURS // 2, method=Image.Quantize.MAXCOVERAGE).getpalette() or []
    kept = np.concatenate([frequent, np.array(spread, np.uint8).reshape(-1, 3)])
    apart = np.abs(colours[:, None].astype(int) - kept[None]).sum(axis=2)
    few = Image.fromarray(apart.argmin(axis=1).astype(np.uint8)[place].reshape(picture.height, picture.width), "P")
    few.putpalette(kept.tobytes())
    stream = io.BytesIO()
    few.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _as_written(figure: Figure) -> None:
    """A dollar in what users, files and other programs say begins no formula, as the labels of powers are."""
    formulas: set[Text] = set()
    for axis in (axis for panel in figure.axes for axis in (panel.xaxis, panel.yaxis)):
        if isinstance(axis.get_major_formatter(), LogFormatter):
            ticks = (*axis.get_major_ticks(), *axis.get_minor_ticks())
            formulas.update(label for tick in ticks for label in (tick.label1, tick.label2))
    for text in figure.findobj(Text):
        if text not in formulas:
            text.set_parse_math(False)
