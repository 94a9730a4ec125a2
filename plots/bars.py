"""The bars of a block over cycles: what its warp groups do, its products and its loads. Read from typed records."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kperf.plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, SMALL, VERMILION, YELLOW, readable
from kperf.trace.analyze.models import Bar, Timeline, Window
from kperf.trace.instrument.program import IntervalKind


@dataclass(frozen=True)
class Style:
    """How a kind of bar is filled, the ink that reads on it, and what the legend calls it; told apart in grey too."""

    colour: str
    ink: str
    label: str
    hatch: str = ""
    edge: str = "#777777"

    def patch(self) -> Patch:
        """For the legend."""
        return Patch(facecolor=self.colour, edgecolor=self.edge, linewidth=0.4, hatch=self.hatch, label=self.label)


WARPS = {
    "issue": Style(BLUE, "white", "issues an MMA"),
    "tensor": Style("#cfe8f7", "black", "waits for an MMA", "...."),
    "arithmetic": Style(ORANGE, "black", "arithmetic"),
    "wait": Style("#d8d8d8", "black", "waits for a barrier or a load"),
    "load": Style("#349a88", "black", "issues a load"),
    "store": Style(YELLOW, "black", "stores"),
    "signal": Style("#fafafa", "black", "other"),
    "other": Style("#fafafa", "black", "other"),
}
BACK_PRESSURE = Style("#f4f4f4", "black", "back-pressure: waits for a free stage", "\\\\", "#b0b0b0")
"""Of a warp group that only loads: its waits cost nobody anything."""
PRODUCTS = ("#332288", VERMILION, SKY)
LOADS = (GREEN, "#a6dcc8", "#ddf0e8")
IDLE = Style("white", "black", "no MMA in flight", "////", PURPLE)

WIDTH_INCHES = 7.0
"""Of a page's text."""
_INCHES_A_LETTER = 0.066
_BESIDE = (("tensor core", "MMAs"), ("loads", "loads"))
"""Rows below the warp groups', and what is on them."""


def looks_beside(
    timelines: Sequence[Timeline], track: str, colours: Sequence[str], label: str
) -> dict[tuple[str, str], Style]:
    """(track, name) -> style, of everything that runs beside the warps; beyond the palette the last colour repeats."""
    windows = [window for timeline in timelines for window in timeline.windows]
    names = sorted({bar.name for window in windows for bar in window.bars if bar.track == track})
    styles = {}
    for place, name in enumerate(names):
        colour = colours[min(place, len(colours) - 1)]
        styles[track, name] = Style(colour, "black", label.format(name))
    return styles


def styles(kind: IntervalKind, parts: Sequence[IntervalKind]) -> list[Style]:
    """Of a region: a lane for each kind of work in it, since how long each takes is not recorded."""
    return list(dict.fromkeys(WARPS[part] for part in parts or [kind]))


def about_parts(windows: Sequence[Window]) -> str:
    """What a bar of several colours is, to stand below the axis; empty if there is none."""
    several = any(len(styles(bar.kind, bar.parts)) > 1 for one in windows for bar in one.bars if bar.track == "warps")
    return "\nA bar of several colours does several things; how long each takes is not recorded." if several else ""


def use_in_words(timeline: Timeline) -> str:
    """How busy the units are that compute, of the SM and of one CTA; empty if there are none."""
    use = timeline.compute_use
    if use is None:
        return ""
    units = "tensor cores" if timeline.mma_use else "FMA units"
    alone = f"{use.cta_main_loop:.0%} in one CTA's main loop"
    return f"{units}: {alone}" if use.sm is None else f"{units}: {use.sm:.0%} of the SM's peak, {alone}"


def draw_window(
    axis: Axes, timeline: Timeline, window: Window, span: float, beside: dict[tuple[str, str], Style]
) -> dict[str, Style]:
    """Draw a window; returns the styles that are in it, by label."""
    low = window.start
    visible = [bar for bar in window.bars if bar.start < low + span and bar.start + bar.cycles > low]
    groups = [*dict.fromkeys(role.warp_group for role in timeline.roles)]
    loaders = {role.warp_group for role in timeline.roles if role.duty == "loads"}
    beside_rows = [(row, track) for row, track in _BESIDE if any(bar.track == track for bar in window.bars)]
    rows = [*groups, *(row for row, _ in beside_rows)]
    heights = {row: len(rows) - 1 - place for place, row in enumerate(rows)}
    shown: dict[str, Style] = {}
    for bar in visible:
        if bar.track != "warps":
            continue
        style, parts = WARPS[bar.kind], styles(bar.kind, bar.parts)
        if bar.kind == "wait" and bar.warp_group in loaders:
            style, parts = BACK_PRESSURE, [BACK_PRESSURE]
        height = 0.8 / len(parts)
        for place, part in enumerate(parts):
            _fill(axis, bar, part, low, span, heights[bar.warp_group] + 0.4 - (place + 1) * height, height)
            shown[part.label] = part
        start, end = _clipped(bar, low, span)
        if (end - start) / span * (WIDTH_INCHES - 1) > _INCHES_A_LETTER * len(bar.name):
            middle = (start + end) / 2
            box = {"facecolor": style.colour, "edgecolor": "none", "pad": 0.6}
            bare = len(parts) == 1 and not style.hatch
            axis.text(
                middle,
                heights[bar.warp_group],
                bar.name,
                ha="center",
                va="center",
                fontsize=7,
                color=style.ink,
                bbox=None if bare else box,
            )
    for row, track in beside_rows:
        bars = [bar for bar in visible if bar.track == track]
        lanes = _lanes(bars)
        for bar, lane in zip(bars, lanes, strict=True):
            height = 0.8 / (max(lanes) + 1)
            style = beside[bar.track, bar.name]
            _fill(axis, bar, style, low, span, heights[row] + 0.4 - (lane + 1) * height, height)
        last = {bar.name: lane for bar, lane in zip(bars, lanes, strict=True)}
        names = sorted(last, key=last.__getitem__)  # at the right edge, where they are named, from above
        if len(names) <= _NAMES_BESIDE:
            _name_beside(axis, heights[row], {name: beside[track, name] for name in names})
        else:
            shown |= {style.label: style for name in names for style in [beside[track, name]]}
    for gap_start, gap_end in _gaps([bar for bar in visible if bar.track == "MMAs"], low, low + span):
        axis.broken_barh(
            [(gap_start - low, gap_end - gap_start)], (heights["tensor core"] - 0.4, 0.8),
            facecolor=IDLE.colour, edgecolor=IDLE.edge, hatch=IDLE.hatch, linewidth=0.4,
        )  # fmt: skip
        shown[IDLE.label] = IDLE
    axis.set_yticks(list(heights.values()), [timeline.row(row) for row in heights])
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.55, len(rows) - 0.45)
    axis.set_xlim(0, span)
    return shown


_NAMES_BESIDE = 2
"""That fit into a row; more are in the legend."""
_SWATCH = "\N{BLACK SQUARE}"
"""Of the very colour, which a name may be too pale to be read in."""


def _name_beside(axis: Axes, height: float, names: Mapping[str, Style]) -> None:
    """What is on a row, right of it, each with its bars' colour before it."""
    for place, (name, style) in enumerate(names.items()):
        middle = height + 0.4 - (place + 0.5) * 0.8 / len(names)
        for text, colour, points in ((_SWATCH, style.colour, 0), (name, readable(style.colour), 7)):
            axis.annotate(
                text, (1.005, middle), xycoords=axis.get_yaxis_transform(), xytext=(points, 0),
                textcoords="offset points", color=colour, annotation_clip=False, va="center", fontsize=SMALL,
            )  # fmt: skip


def _fill(axis: Axes, bar: Bar, style: Style, low: float, span: float, bottom: float, height: float) -> None:
    start, end = _clipped(bar, low, span)
    axis.broken_barh(
        [(start, end - start)],
        (bottom, height),
        facecolor=style.colour,
        edgecolor=style.edge if style.hatch else "white",
        linewidth=0.3,
        hatch=style.hatch,
    )


def _clipped(bar: Bar, low: float, span: float) -> tuple[float, float]:
    return max(bar.start - low, 0), min(bar.start + bar.cycles - low, span)


def _lanes(bars: Sequence[Bar]) -> list[int]:
    """A lane for each bar, in which no other is at the same time."""
    lanes, free = [], list[int]()
    for bar in bars:
        lane = next((lane for lane, since in enumerate(free) if since <= bar.start), len(free))
        free[lane:] = [bar.start + bar.cycles, *free[lane + 1 :]]
        lanes.append(lane)
    return lanes


def _gaps(bars: Sequence[Bar], low: float, high: float) -> list[tuple[float, float]]:
    """The stretches in which none of the bars is; without any bar there is nothing whose absence could be shown."""
    if not bars:
        return []
    gaps = []
    reached = low
    for start, end in sorted((bar.start, bar.start + bar.cycles) for bar in bars):
        if start > reached:
            gaps.append((reached, min(start, high)))
        reached = max(reached, end)
    return gaps if reached >= high else [*gaps, (reached, high)]
