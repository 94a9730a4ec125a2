"""One traced kernel: what a typical block does, where the cycles of its warp groups go, and how it fills the SMs.

Reads a typed record, writes PDF and PNG, as wide as a page's text.
"""

from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from kperf.plots.bars import (
    BACK_PRESSURE,
    IDLE,
    LOADS,
    PRODUCTS,
    WARPS,
    WIDTH_INCHES,
    Style,
    about_parts,
    draw_window,
    looks_beside,
    styles,
    use_in_words,
)
from kperf.plots.style import BLACK, BLUE, GREY, VERMILION, own_settings, save
from kperf.trace.analyze.models import Memory, SmUse, Timeline, Window

WINDOW_ITERATIONS = 3
WINDOW_BARS = 48
"""Of a warp group of a block that is shown from its start."""

WAITS = {
    "first load": Style("#d8d8d8", "black", "waits for the first load", "////"),
    "later loads": Style("#d8d8d8", "black", "waits for later loads"),
    "waiting for loads": Style("#d8d8d8", "black", "waits for loads"),
    "barriers": Style("#888888", "white", "waits at barriers", "...."),
    "issuing loads": WARPS["load"],
    "reductions": Style("#f5c96b", "black", "reductions", "\\\\\\\\"),
    "arithmetic": WARPS["arithmetic"],
    "stores": WARPS["store"],
    "MMAs": WARPS["tensor"],
    "other": WARPS["other"],
}
BUSY = Style("#9ecae1", "black", "SMs with a CTA")
SLOWEST = Style(VERMILION, "white", "the slowest CTA")


def draw(timeline: Timeline, stamp: str, out: Path) -> list[Path]:
    """The figure of the timeline's view; `out` without a suffix. Returns the files."""
    with own_settings():
        out = out.with_name(f"{out.name}.png")  # a kernel's name may have a point
        return save(_figure(timeline, stamp), out)


def _figure(timeline: Timeline, stamp: str) -> Figure:
    windows = timeline.windows
    heights = [*(0.6 + 0.28 * _rows(timeline, window) for window in windows), 0.55 + 0.22 * len(_stacked(timeline))]
    heights += [1.1] if timeline.sms else []
    figure = Figure(figsize=(WIDTH_INCHES, 1.5 + sum(heights)), layout="constrained")
    FigureCanvasAgg(figure)  # and not pyplot's, whose back end a script may have chosen
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    products = looks_beside([timeline], "MMAs", PRODUCTS, "{} in flight")
    loads = looks_beside([timeline], "loads", LOADS, "load of {}, from issue to use")
    shown: dict[str, Style] = {}
    for place, window in enumerate(windows):
        axis = figure.add_subplot(grid[place, 0])
        shown |= draw_window(axis, timeline, window, _span(timeline, window), products | loads)
        axis.set_xlabel(f"SM cycles{about_parts([window])}")
        axis.set_title(_wrapped(_title(timeline, window)), loc="left", fontsize=8)
    shown |= _stacks(figure.add_subplot(grid[len(windows), 0]), timeline)
    if timeline.sms:
        shown |= _occupancy(figure.add_subplot(grid[-1, 0]), timeline, timeline.sms)
    order = [*WARPS.values(), BACK_PRESSURE, *WAITS.values(), *products.values(), *loads.values(), IDLE, BUSY, SLOWEST]
    handles = [style.patch() for style in {style.label: style for style in order if style.label in shown}.values()]
    figure.legend(handles=handles, ncols=3, loc="outside upper center", frameon=False, handlelength=1.6, fontsize=8)
    e = timeline.environment
    versions = f"torch {e.torch}, triton {e.triton}, driver {e.driver}"
    figure.supxlabel(f"{stamp}\n{versions}", fontsize=7, color="#444444")
    return figure


def _rows(timeline: Timeline, window: Window) -> int:
    return len(timeline.roles) + len({bar.track for bar in window.bars} - {"warps"})


def _span(timeline: Timeline, window: Window) -> float:
    """Cycles to show: some iterations, or of a CTA as much as can be told apart."""
    if window.shows != "CTA":
        return WINDOW_ITERATIONS * timeline.cycles_per_unit.median
    ends = [
        sorted(bar.start + bar.cycles for bar in window.bars if (bar.track, bar.warp_group) == ("warps", group))
        for group in {bar.warp_group for bar in window.bars if bar.track == "warps"}
    ]
    return float(min((times[:WINDOW_BARS][-1] for times in ends), default=0) or timeline.cycles_per_unit.median)


def _wrapped(title: str) -> str:
    return "\n".join(fill(line, _TITLE_LETTERS) for line in title.splitlines())


_TITLE_LETTERS = 96
"""Of a line of a panel's title that there is room for."""


def _title(timeline: Timeline, window: Window) -> str:
    if window.shows == "tile boundary":
        return "from the last iteration of a tile to the next tile"
    period = timeline.iteration.cycles if timeline.iteration else timeline.cycles_per_unit.median
    trace = f"Tracing {timeline.overhead.cost} of the time"
    if window.shows == "CTA":
        rest = "" if _span(timeline, window) >= period * 0.98 else "; its beginning"
        return f"{timeline.label}: {period:.0f} cycles a CTA{rest}. {trace}"
    below = ". ".join(filter(None, (use_in_words(timeline), trace)))
    return f"{timeline.label}: {period:.0f} cycles an iteration\n{below}"


Stacked = tuple[str, float, list[Style]]
"""A part of a bar: its name, its share, and how each kind of work in it styles."""


def _stacked(timeline: Timeline) -> list[tuple[str, list[Stacked]]]:
    """Bars: (warp group, its regions); of a memory view what its warps do."""
    if timeline.memory:
        return [("a CTA", _waits(timeline.memory))]
    rows = []
    for role in timeline.roles:
        regions = [r for r in timeline.regions if r.warp_group == role.warp_group]
        rows.append((role.row, [(r.name, r.share, styles(r.kind, [part.kind for part in r.parts])) for r in regions]))
    return rows


def _waits(memory: Memory) -> list[Stacked]:
    known = {wait.doing: wait.share for wait in memory.waits}
    return [(name, known[name], [WAITS[name]]) for name in WAITS if name in known]


def _stacks(axis: Axes, timeline: Timeline) -> dict[str, Style]:
    """The lifetime of each warp group by region, with the name where it fits."""
    shown: dict[str, Style] = {}
    rows = _stacked(timeline)
    for place, (_, parts) in enumerate(rows):
        left = 0.0
        for name, share, lanes in parts:
            height = 0.8 / len(lanes)
            for lane, style in enumerate(lanes):
                edge = style.edge if style.hatch else "white"
                middle = place - 0.4 + (lane + 0.5) * height
                axis.barh(
                    middle, share, height, left, color=style.colour, edgecolor=edge, linewidth=0.4, hatch=style.hatch
                )
                shown[style.label] = style
            words = next((text for text in (f"{name} {share:.0%}", f"{share:.0%}") if _fits(text, share)), None)
            if words:
                ground, ink = (lanes[0].colour, lanes[0].ink) if len(lanes) == 1 else ("white", "black")
                box = {"facecolor": ground, "edgecolor": "none", "pad": 0.6}
                axis.text(left + share / 2, place, words, ha="center", va="center", fontsize=7, color=ink, bbox=box)
            left += share
    axis.set_yticks(range(len(rows)), [name for name, _ in rows])
    axis.tick_params(axis="y", length=0)
    axis.set_xlim(0, 1)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axis.invert_yaxis()
    axis.set_xlabel("share of a CTA's lifetime, over all CTAs")
    return shown


def _fits(text: str, share: float) -> bool:
    return share * (WIDTH_INCHES - 1.2) > 0.062 * len(text) + 0.05


def _occupancy(axis: Axes, timeline: Timeline, sms: SmUse) -> dict[str, Style]:
    """SMs with a block, over the time of the launch, and the slowest block's stretch of it."""
    shown = {BUSY.label: BUSY}
    times = np.linspace(0, sms.span_us, len(sms.busy_sms))
    axis.fill_between(times, sms.busy_sms, step="post", color=BUSY.colour, linewidth=0)
    axis.step(times, sms.busy_sms, where="post", color=BLUE, linewidth=0.8)
    axis.axvline(sms.median_end_us, color=BLACK, linewidth=0.8, linestyle=(0, (3, 3)))
    late = sms.median_end_us > 0.6 * sms.span_us
    axis.annotate(
        "half of the SMs have ended", (sms.median_end_us, 1), xycoords=axis.get_xaxis_transform(), xytext=(0, 1),
        textcoords="offset points", ha="right" if late else "left", va="bottom", fontsize=7,
    )  # fmt: skip
    if timeline.imbalance:
        slowest = timeline.imbalance.slowest
        axis.barh(
            -0.1 * sms.sms, slowest.us, 0.1 * sms.sms, slowest.start_us, color=SLOWEST.colour, edgecolor=GREY,
            linewidth=0.4,
        )  # fmt: skip
        shown[SLOWEST.label] = SLOWEST
    axis.set_xlim(0, sms.span_us)
    axis.set_ylim(-0.18 * sms.sms if timeline.imbalance else 0, sms.sms * 1.05)
    axis.set_ylabel("SMs")
    axis.set_xlabel(f"µs since the first CTA began; the {sms.sms} SMs are idle {sms.idle:.0%} of the time")
    return shown
