"""Fig. 11 from recorded timelines: what the warp groups of one CTA do, and where an iteration's cycles go.

Reads typed records, writes PDF and PNG, as wide as a page's text.
"""

from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from kperf.errors import UsageError
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
    use_in_words,
)
from kperf.plots.style import SMALL, headline, save
from kperf.record.store import Environment
from kperf.trace.analyze.models import Timeline, Window

RATE = Style("#555555", "white", "MMAs at the peak rate")
EVENTS = Style("#f2f2f2", "black", "events", "xxxx", "#999999")
BEYOND = Style("#b0b0b0", "black", "queued or in latency")
WINDOW_ITERATIONS = 3
_ROOM = 0.045
"""Of an iteration: of a wider part there is room for its cycles."""
_APART = 0.006
"""Of an iteration: names keep this distance from the ends of their parts, where another one's may end."""


def draw(timelines: Sequence[Timeline], stamp: str, out: Path) -> list[Path]:
    """Timelines over one cycle axis, and the cycles of an iteration; `out` without a suffix. Returns the files.

    Raises `UsageError` if a timeline has no iterations to show.
    """
    views = [(timeline, window) for timeline in timelines for window in timeline.windows]
    silent = [t.label for t in timelines if not any(window.shows == "iterations" for window in t.windows)]
    if silent:
        raise UsageError(f"the timeline of {silent[0]} has no iteration of a main loop to draw")
    products = looks_beside(timelines, "MMAs", PRODUCTS, "{} in flight")
    loads = looks_beside(timelines, "loads", LOADS, "load of {}, from issue to use")
    heights = [*(1.6 for _ in views), 0.25 + 0.3 * len(timelines)]
    figure = plt.figure(figsize=(WIDTH_INCHES, 1.6 + 1.1 * sum(heights)), layout="constrained")
    grid = figure.add_gridspec(len(heights), 1, height_ratios=heights)
    span = WINDOW_ITERATIONS * max(timeline.cycles_per_unit.median for timeline in timelines)
    shown: dict[str, Style] = {}
    axes = [figure.add_subplot(grid[place, 0]) for place in range(len(views))]
    for axis, (timeline, window) in zip(axes, views, strict=True):
        shown |= draw_window(axis, timeline, window, span, products | loads)
        period = timeline.cycles_per_unit.median
        for number in range(int(span / period) + 1 if window.shows == "iterations" else 0):
            axis.axvline(number * period, color="black", linewidth=0.6, linestyle=(0, (3, 3)), zorder=2.5)
        axis.set_title(_title(timeline, window), loc="left", fontsize=8)
        axis.tick_params(labelbottom=axis is axes[-1])
    about = about_parts([window for _, window in views])
    axes[-1].set_xlabel(f"SM cycles. Dashed: iterations of the main loop (a tile of keys and values each).{about}")
    shown |= _stacks(figure.add_subplot(grid[-1, 0]), timelines)
    order = [*WARPS.values(), BACK_PRESSURE, *products.values(), *loads.values(), IDLE]
    handles = [style.patch() for style in dict.fromkeys(order) if style.label in shown]
    headline(figure, [_finding(timelines)], handles, [str(handle.get_label()) for handle in handles])
    versions = dict.fromkeys(f"torch {e.torch}, triton {e.triton}, driver {e.driver}" for e in _environments(timelines))
    figure.supxlabel(f"{stamp}\n{'; '.join(versions)}", fontsize=7, color="#444444")
    return save(figure, out)


def _environments(timelines: Sequence[Timeline]) -> list[Environment]:
    return [timeline.environment for timeline in timelines]


def _title(timeline: Timeline, window: Window) -> str:
    if window.shows == "tile boundary" and timeline.tile_boundary_cycles is not None:
        beyond = timeline.tile_boundary_cycles.median
        return (
            f"{timeline.label}, from a tile's last iteration to the next tile: {beyond:.0f} cycles beyond an iteration"
        )
    iteration = f"{timeline.label}: {_cycles(timeline):.0f} cycles an iteration"
    order = "keeps the order of instructions" if timeline.sass_order.same else "moves instructions"
    return (
        f"{'; '.join(filter(None, (iteration, use_in_words(timeline))))}\n"
        f"drawn: {_drawn(timeline)} {timeline.overhead.cost} of the time and {order}"
    )


def _cycles(timeline: Timeline) -> float:
    """An iteration of the launch that events change least."""
    return timeline.iteration.cycles if timeline.iteration else timeline.cycles_per_unit.median


def _drawn(timeline: Timeline) -> str:
    if timeline.joined:
        return f"{len(timeline.passes) - len(timeline.joined.left_out)} passes joined; the dearest"
    return f"{timeline.cycles_per_unit.median:.0f} cycles with all events, which"


def _parts(timeline: Timeline) -> list[tuple[Style, float]]:
    """The cycles of an iteration: what its MMAs need, what they take beyond, none of them in flight, the events' cost.

    What is beyond the MMAs' cycles is split as in the launch that is drawn, whose events lengthen it.
    """
    period, drawn = _cycles(timeline), timeline.cycles_per_unit.median
    bound = min(timeline.bound.cycles if timeline.bound else 0.0, period)
    share = sum(bubble.cycles for bubble in timeline.bubbles) / max(drawn - bound, 1.0)
    idle = min(share, 1.0) * (period - bound)
    return [(RATE, bound), (BEYOND, period - bound - idle), (IDLE, idle), (EVENTS, drawn - period)]


def _finding(timelines: Sequence[Timeline]) -> str:
    """For how long the tensor cores have nothing in each schedule, in the launch that events change least."""
    idle = [f"{dict(_parts(timeline))[IDLE]:.0f}" for timeline in timelines]
    of = "of an iteration without an MMA in flight, less what events cost"
    if len(timelines) == 1:
        return f"{timelines[0].label}: {idle[0]} cycles {of}"
    of_each = (f"{timeline.label} {cycles}" for timeline, cycles in zip(timelines, idle, strict=True))
    return f"Cycles {of}: {', '.join(of_each)}"


def _stacks(axis: Axes, timelines: Sequence[Timeline]) -> dict[str, Style]:
    """The parts of an iteration, named above where they are widest, with the launch's time."""
    shown: dict[str, Style] = {}
    widest = {
        style: max(range(len(timelines)), key=lambda place: dict(_parts(timelines[place]))[style])
        for style in (RATE, BEYOND, EVENTS)
    }
    for place, timeline in enumerate(timelines):
        period = _cycles(timeline)
        left = 0.0
        for style, cycles in _parts(timeline):
            if cycles < 1:
                continue
            edge = style.edge if style.hatch else "white"
            axis.barh(place, cycles, 0.7, left, color=style.colour, edgecolor=edge, linewidth=0.4, hatch=style.hatch)
            if cycles > _ROOM * period:
                box = {"facecolor": style.colour, "edgecolor": "none", "pad": 0.8}
                axis.text(
                    left + cycles / 2, place, f"{cycles:.0f}", ha="center", va="center", color=style.ink, bbox=box
                )
            if widest.get(style) == place:
                # A part may be narrower than its name: names of neighbours end and begin near where the parts do.
                ends = {BEYOND: (cycles - _APART * period, "right"), EVENTS: (_APART * period, "left")}
                at, side = ends.get(style, (cycles / 2, "center"))
                axis.text(left + at, place - 0.37, style.label, ha=side, va="bottom", fontsize=SMALL)
            if style is IDLE:
                shown[style.label] = style
            left += cycles
        end = f" {period:.0f}\n {timeline.overhead.launch_ms:.2f} ms"
        axis.text(left, place, end, ha="left", va="center", fontweight="bold")
    axis.set_yticks(range(len(timelines)), [timeline.label.replace(" ", "\n", 1) for timeline in timelines])
    axis.tick_params(axis="y", length=0)
    axis.set_ylim(len(timelines) - 0.5, -0.75)
    axis.set_xlabel("cycles of an iteration, of the launch that events change least; beyond it what all events cost")
    return shown
