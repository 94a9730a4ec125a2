"""The timeline of a CTA as an interactive figure, with zoom, pan and hover; Bokeh's script travels in the page."""

from bokeh.models import ColumnDataSource, FactorRange, HoverTool, NumeralTickFormatter, Range1d
from bokeh.plotting import figure

from kperf.report.events import TracedCta

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
_SHOWN_FIRST = 60
"""Bars of the busiest row that are shown before somebody zooms out."""


def timeline_figure(cta: TracedCta, name: str) -> figure:
    """A row for each warp group, the tensor cores and the loads; a bar an event, x in SM cycles.

    `name` is what scripts of the page find the figure and its source by (`name`, `name-events`).
    """
    rows = list(reversed(cta.rows))
    begin, end = _first_view(cta)
    kinds = [KINDS.get(event.kind, KINDS["other"]) for event in cta.events]
    source = ColumnDataSource(
        {
            "row": [event.row for event in cta.events],
            "left": [event.start for event in cta.events],
            "right": [event.start + event.cycles for event in cta.events],
            "cycles": [event.cycles for event in cta.events],
            "name": [event.name for event in cta.events],
            "words": [words for words, _ in kinds],
            "colour": [colour for _, colour in kinds],
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
        y="row", left="left", right="right", height=0.8, source=source,
        fill_color="colour", fill_alpha="alpha", line_color="#555555", line_width=0.4, line_alpha="alpha",
    )  # fmt: skip
    shown = [("", "@name"), ("", "@words"), ("cycles", "@cycles{0,0}"), ("iteration", "@iteration"), ("row", "@row")]
    made.add_tools(HoverTool(renderers=[bars], tooltips=shown, point_policy="follow_mouse"))
    made.ygrid.grid_line_color = None
    made.xaxis.formatter = NumeralTickFormatter(format="0,0")
    made.toolbar.logo = None
    return made


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
    return begin, min(begin + end * min(_SHOWN_FIRST / busiest, 1.0), end)
