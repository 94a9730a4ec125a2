"""The timeline of a CTA as an interactive figure, with zoom, pan and hover; Bokeh's script travels in the page."""

from collections.abc import Sequence

from bokeh.models import ColumnDataSource, FactorRange, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from kperf.report.events import Event, TracedCta
from kperf.trace.analyze.models import Timeline

KINDS = {
    "issue": ("issues an MMA", "#0072b2"),
    "tensor": ("waits for an MMA", "#9fd3f0"),
    "arithmetic": ("computes", "#e69f00"),
    "wait": ("waits", "#bdbdbd"),
    "load": ("issues a load", "#009e73"),
    "store": ("stores", "#f0e442"),
    "signal": ("other", "#e8e8e8"),
    "other": ("other", "#e8e8e8"),
    "MMA": ("MMA in flight", "#332288"),
    "load in flight": ("load in flight", "#a6dcc8"),
}
"""Kind of an event: its words and its colour (Okabe and Ito's, told apart with any colour vision)."""

_ROW_PIXELS = 34
_BAR = 0.8
"""Of a row's height."""
_SHOWN_FIRST = 60
"""Bars of the busiest row that are shown before somebody zooms out."""


def kinds_of(cta: TracedCta, timeline: Timeline) -> list[tuple[str, ...]]:
    """For each event its kind, or those of the parts of its region: how long each part takes is not recorded."""
    mixed = {
        (region.warp_group, region.name): tuple(dict.fromkeys(part.kind for part in region.parts))
        for region in timeline.regions
        if region.parts
    }
    return [mixed.get((_group(event), event.name), (event.kind,)) for event in cta.events]


def _group(event: Event) -> str:
    """The warp group of a row; that of a second CTA on the SM says so behind it."""
    return event.row.partition(", CTA ")[0]


def timeline_figure(cta: TracedCta, timeline: Timeline, name: str) -> figure:
    """A row for each warp group, the tensor cores and the loads; a bar an event, x in SM cycles.

    A region that does several kinds of work has a lane for each. `name` is what scripts of the page find the figure and
    its source by (`name`, `name-events`).
    """
    rows = list(reversed(cta.rows))
    begin, end = _first_view(cta)
    kinds = [
        list(dict.fromkeys(KINDS.get(kind, KINDS["other"]) for kind in of_event))
        for of_event in kinds_of(cta, timeline)
    ]
    source = ColumnDataSource(
        {
            "row": [event.row for event in cta.events],
            "left": [event.start for event in cta.events],
            "right": [event.start + event.cycles for event in cta.events],
            "cycles": [event.cycles for event in cta.events],
            "name": [event.name for event in cta.events],
            "words": [", ".join(words for words, _ in lanes) for lanes in kinds],
            "colour": [lanes[0][1] for lanes in kinds],
            "iteration": ["-" if event.iteration is None else str(event.iteration) for event in cta.events],
            "alpha": [1.0] * len(cta.events),
        },
        name=f"{name}-events",
    )
    made = figure(
        name=name,
        y_range=FactorRange(factors=rows),
        x_range=Range1d(start=begin, end=end, bounds=(0, _end(cta))),
        height=90 + _ROW_PIXELS * len(rows),
        sizing_mode="stretch_width",
        tools="xpan,xwheel_zoom,xbox_zoom,reset",
        active_drag="xpan",
        active_scroll="xwheel_zoom",
        x_axis_label="SM cycles since the CTA's first event",
        output_backend="canvas",
    )
    bars = made.hbar(
        y="row", left="left", right="right", height=_BAR, source=source,
        fill_color="colour", fill_alpha="alpha", line_color="#555555", line_width=0.4, line_alpha="alpha",
    )  # fmt: skip
    for lane in range(1, max(map(len, kinds), default=1)):
        _lane(made, source, cta, kinds, lane)
    shown = [("", "@name"), ("", "@words"), ("cycles", "@cycles{0,0}"), ("iteration", "@iteration"), ("row", "@row")]
    made.add_tools(HoverTool(renderers=[bars], tooltips=shown, point_policy="follow_mouse"))
    made.ygrid.grid_line_color = None
    made.xaxis.formatter = NumeralTickFormatter(format="0,0")
    made.toolbar.logo = None
    return made


def _lane(
    made: figure, source: ColumnDataSource, cta: TracedCta, kinds: Sequence[Sequence[tuple[str, str]]], lane: int
) -> None:
    """Over each bar with so many lanes: this one and what is below it, in its colour."""
    above = [lane / len(lanes) if lane < len(lanes) else 1.0 for lanes in kinds]
    source.data = dict(source.data) | {
        f"row{lane}": [(event.row, -_BAR / 2 * share) for event, share in zip(cta.events, above, strict=True)],
        f"height{lane}": [_BAR * (1 - share) for share in above],
        f"colour{lane}": [lanes[min(lane, len(lanes) - 1)][1] for lanes in kinds],
    }
    made.hbar(
        y=f"row{lane}", left="left", right="right", height=f"height{lane}", source=source,
        fill_color=f"colour{lane}", fill_alpha="alpha", line_color=None,
    )  # fmt: skip


def _end(cta: TracedCta) -> float:
    return max((event.start + event.cycles for event in cta.events), default=1.0)


def _first_view(cta: TracedCta) -> tuple[float, float]:
    """From the middle iteration on, or the beginning without a loop, as many cycles as hold `_SHOWN_FIRST` bars."""
    end = _end(cta)
    iterations = sorted({event.iteration for event in cta.events if event.iteration is not None})
    begin = 0.0
    if iterations:
        middle = iterations[len(iterations) // 2]
        begin = min(event.start for event in cta.events if event.iteration == middle)
    busiest = max((sum(event.row == row for event in cta.events) for row in cta.rows), default=1)
    return begin, min(begin + end * _SHOWN_FIRST / busiest, end)
