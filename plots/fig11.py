"""Fig. 11 from recorded timelines: what the warp groups of one block do, and where a trip's cycles go.

Reads typed records, writes PDF and PNG, as wide as a page's text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from kperf.errors import UsageError
from kperf.record.store import Environment
from kperf.trace.reading.models import Bar, Timeline, Window
from plots.style import BLUE, GREEN, ORANGE, PURPLE, SKY, VERMILION, YELLOW, save


@dataclass(frozen=True)
class Look:
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
    "issue": Look(BLUE, "white", "issues a product"),
    "tensor": Look("#cfe8f7", "black", "waits for a product", "...."),
    "arithmetic": Look(ORANGE, "black", "arithmetic (softmax)"),
    "wait": Look("#c4c4c4", "black", "waits at a barrier"),
    "load": Look("#44aa99", "black", "issues a load"),
    "store": Look(YELLOW, "black", "stores"),
    "signal": Look("#f2f2f2", "black", "other"),
    "other": Look("#f2f2f2", "black", "other"),
}
PRODUCTS = ("#332288", VERMILION, SKY)
LOADS = (GREEN, "#a6dcc8", "#ddf0e8")
IDLE = Look("white", "black", "no product in flight", "////", PURPLE)
RATE = Look("#555555", "white", "products at the peak rate")
BEYOND = Look("#b0b0b0", "black", "in flight beyond that: queue and latency")

WIDTH_INCHES = 7.0
WINDOW_TRIPS = 3
_INCHES_A_LETTER = 0.066


def draw(timelines: Sequence[Timeline], stamp: str, out: Path) -> list[Path]:
    """Timelines over one cycle axis, and the cycles of a trip; `out` without a suffix. Returns the files.

    Raises `UsageError` if a timeline has no trips to show.
    """
    views = [(timeline, window) for timeline in timelines for window in timeline.windows]
    silent = [t.label for t in timelines if not any(window.shows == "trips" for window in t.windows)]
    if silent:
        raise UsageError(f"the timeline of {silent[0]} has no trip of a main loop to draw")
    products = _looks(timelines, "products", PRODUCTS, "{} in flight")
    loads = _looks(timelines, "loads", LOADS, "load of {}, from issue to use")
    heights = [*(1.6 for _ in views), 0.25 + 0.3 * len(timelines)]
    figure = plt.figure(figsize=(WIDTH_INCHES, 1.6 + 1.1 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    span = WINDOW_TRIPS * max(timeline.period_cycles.median for timeline in timelines)
    shown: dict[str, Look] = {}
    axes = [figure.add_subplot(grid[place, 0]) for place in range(len(views))]
    for axis, (timeline, window) in zip(axes, views, strict=True):
        shown |= _timeline(axis, timeline, window, span, products | loads)
        axis.set_title(_title(timeline, window), loc="left", fontsize=8)
        axis.tick_params(labelbottom=axis is axes[-1])
    axes[-1].set_xlabel("SM cycles. Dashed: trips, one pass of the main loop (a block of keys and values) each")
    shown |= _stacks(figure.add_subplot(grid[-1, 0]), timelines)
    order = [*WARPS.values(), *products.values(), *loads.values(), IDLE, RATE, BEYOND]
    handles = [look.patch() for look in dict.fromkeys(order) if look.label in shown]
    figure.legend(handles=handles, ncols=3, loc="outside upper center", frameon=False, handlelength=1.6, fontsize=8)
    versions = dict.fromkeys(f"torch {e.torch}, triton {e.triton}, driver {e.driver}" for e in _environments(timelines))
    figure.supxlabel(f"{stamp}\n{'; '.join(versions)}", fontsize=7, color="#444444")
    return save(figure, out)


def _environments(timelines: Sequence[Timeline]) -> list[Environment]:
    return [timeline.environment for timeline in timelines]


def _looks(
    timelines: Sequence[Timeline], track: str, colours: Sequence[str], label: str
) -> dict[tuple[str, str], Look]:
    """(track, name) -> look, of everything that runs beside the warps; beyond the palette the last colour repeats."""
    windows = [window for timeline in timelines for window in timeline.windows]
    names = sorted({bar.name for window in windows for bar in window.bars if bar.track == track})
    found = {}
    for place, name in enumerate(names):
        colour = colours[min(place, len(colours) - 1)]
        found[track, name] = Look(colour, "black", label.format(name))
    return found


def _title(timeline: Timeline, window: Window) -> str:
    if window.shows == "tile boundary" and timeline.tile_boundary_cycles is not None:
        beyond = timeline.tile_boundary_cycles.median
        return f"{timeline.label}, from a tile's last trip to the next tile: {beyond:.0f} cycles beyond a trip"
    busy = timeline.tensor_core_busy
    rate = f", tensor cores at {busy.at_issue_rate:.0%} of their peak rate" if busy else ""
    order = "keeps the order of instructions" if timeline.sass_order.same else "moves instructions (see the verdict)"
    return (
        f"{timeline.label}: {timeline.period_cycles.median:.0f} cycles a trip{rate}\n"
        f"tracing costs {timeline.overhead.ratio - 1:.1%} of the time and {order}"
    )


def _timeline(
    axis: Axes, timeline: Timeline, window: Window, span: float, beside: dict[tuple[str, str], Look]
) -> dict[str, Look]:
    """Draw a window; returns the looks that are in it, by label."""
    low = window.start
    visible = [bar for bar in window.bars if bar.start < low + span and bar.start + bar.cycles > low]
    rows = [*dict.fromkeys(role.warp_group for role in timeline.roles), "tensor core", "loads"]
    heights = {row: len(rows) - 1 - place for place, row in enumerate(rows)}
    shown: dict[str, Look] = {}
    for bar in visible:
        if bar.track != "warps":
            continue
        look = WARPS[bar.kind]
        _fill(axis, bar, look, low, span, heights[bar.warp_group] - 0.4, 0.8)
        start, end = _clipped(bar, low, span)
        if (end - start) / span * (WIDTH_INCHES - 1) > _INCHES_A_LETTER * len(bar.name):
            middle = (start + end) / 2
            axis.text(middle, heights[bar.warp_group], bar.name, ha="center", va="center", fontsize=7, color=look.ink)
        shown[look.label] = look
    for row, track in (("tensor core", "products"), ("loads", "loads")):
        bars = [bar for bar in visible if bar.track == track]
        lanes = _lanes(bars)
        for bar, lane in zip(bars, lanes, strict=True):
            height = 0.8 / (max(lanes) + 1)
            look = beside[bar.track, bar.name]
            _fill(axis, bar, look, low, span, heights[row] + 0.4 - (lane + 1) * height, height)
            shown[look.label] = look
    for gap_start, gap_end in _gaps([bar for bar in visible if bar.track == "products"], low, low + span):
        axis.broken_barh(
            [(gap_start - low, gap_end - gap_start)], (heights["tensor core"] - 0.4, 0.8),
            facecolor=IDLE.colour, edgecolor=IDLE.edge, hatch=IDLE.hatch, linewidth=0.4,
        )  # fmt: skip
        shown[IDLE.label] = IDLE
    axis.set_yticks(list(heights.values()), list(heights))
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(-0.55, len(rows) - 0.45)
    axis.set_xlim(0, span)
    period = timeline.period_cycles.median
    for number in range(int(span / period) + 1):
        axis.axvline(number * period, color="black", linewidth=0.6, linestyle=(0, (3, 3)), zorder=3)
    return shown


def _fill(axis: Axes, bar: Bar, look: Look, low: float, span: float, bottom: float, height: float) -> None:
    start, end = _clipped(bar, low, span)
    axis.broken_barh(
        [(start, end - start)],
        (bottom, height),
        facecolor=look.colour,
        edgecolor=look.edge if look.hatch else "white",
        linewidth=0.3,
        hatch=look.hatch,
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


def _stacks(axis: Axes, timelines: Sequence[Timeline]) -> dict[str, Look]:
    """The cycles of a trip: what its products need, what they take beyond that, and with none of them in flight."""
    shown: dict[str, Look] = {}
    for place, timeline in enumerate(timelines):
        period = timeline.period_cycles.median
        bound = timeline.bound.cycles if timeline.bound else 0.0
        idle = sum(bubble.cycles for bubble in timeline.bubbles)
        left = 0.0
        for look, cycles in ((RATE, bound), (BEYOND, period - bound - idle), (IDLE, idle)):
            if cycles <= 0:
                continue
            edge = look.edge if look.hatch else "white"
            axis.barh(place, cycles, 0.7, left, color=look.colour, edgecolor=edge, linewidth=0.4, hatch=look.hatch)
            if cycles > 0.06 * period:
                box = {"facecolor": look.colour, "edgecolor": "none", "pad": 0.8}
                axis.text(left + cycles / 2, place, f"{cycles:.0f}", ha="center", va="center", color=look.ink, bbox=box)
            shown[look.label] = look
            left += cycles
        axis.text(left, place, f" {period:.0f}", ha="left", va="center", fontweight="bold")
    axis.set_yticks(range(len(timelines)), [timeline.label.replace(" ", "\n", 1) for timeline in timelines])
    axis.tick_params(axis="y", length=0)
    axis.invert_yaxis()
    axis.set_xlabel("cycles of a trip (median over all blocks)")
    return shown
