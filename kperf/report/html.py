"""One self-contained HTML page of one or more traced kernels: no network, readable on a phone and on paper."""

import base64
import linecache
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from bokeh.embed import components
from bokeh.model import Model
from bokeh.resources import Resources
from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from kperf.report.figure import KINDS, kinds_of, timeline_figure
from kperf.report.report import Report
from kperf.trace.analyze.models import RegionTime, Timeline

LINES_AROUND = 4
"""Lines of source that are shown before the first and after the last line that has numbers."""


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's source: cycles an iteration (or a CTA) of each warp group, and what was found there."""

    number: int
    text: str
    cycles: dict[str, float]
    findings: tuple[str, ...]


def page(reports: Sequence[Report], sources: Path) -> str:
    """The page's text. `sources`: the folder from which the kernels' files are named."""
    figures: dict[str, Model] = {
        f"timeline{number}": timeline_figure(report.cta, report.timeline, f"timeline{number}")
        for number, report in enumerate(reports)
        if report.cta is not None
    }
    script, places = components(figures) if figures else ("", {})
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"percent": _percent, "cycles": "{:,.0f}".format, "packed": _packed}
    inside = files("kperf.report")
    return environment.from_string(inside.joinpath("page.html.jinja").read_text()).render(
        reports=reports,
        kinds=KINDS,
        shown=[_shown(report) for report in reports],
        listings=[listing(report.timeline, sources) for report in reports],
        rows=[_by_share(report.timeline.regions) for report in reports],
        places=[Markup(places.get(f"timeline{number}", "")) for number in range(len(reports))],
        style=Markup(inside.joinpath("page.css").read_text()),
        controls=Markup(inside.joinpath("page.js").read_text()),
        bokeh=Markup(Resources(mode="inline", components=["bokeh"]).render_js() if figures else ""),
        script=Markup(script),
    )


def listing(timeline: Timeline, sources: Path) -> list[SourceLine]:
    """The kernel's source around the lines that have cycles or findings; empty where the file is not there.

    Cycles of a region count at its first operation's line, for a unit of the timeline (an iteration, or a CTA).
    """
    name, _, _ = timeline.file.rpartition(":")
    cycles: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    findings: dict[int, list[str]] = defaultdict(list)
    for region in timeline.regions:
        if region.source is not None and region.source.file == name and region.per_iteration is not None:
            cycles[region.source.line][region.warp_group] += region.per_iteration
    for finding in timeline.findings:
        if finding.source.file == name:
            findings[finding.source.line].append(finding.message)
    numbers = [*cycles, *findings]
    lines = linecache.getlines(str(sources / name)) if numbers else []
    shown = range(max(min(numbers, default=1) - LINES_AROUND, 1), max(numbers, default=0) + LINES_AROUND + 1)
    return [
        SourceLine(
            number, lines[number - 1].rstrip("\n"), dict(cycles.get(number, {})), tuple(findings.get(number, ()))
        )
        for number in shown
        if number <= len(lines)
    ]


def _shown(report: Report) -> set[str]:
    """The kinds of events and of their parts."""
    return {kind for kinds in kinds_of(report.cta, report.timeline) for kind in kinds} if report.cta else set()


def _by_share(regions: Sequence[RegionTime]) -> list[RegionTime]:
    """Of each warp group the largest first, groups in their order."""
    groups = list(dict.fromkeys(region.warp_group for region in regions))
    return sorted(regions, key=lambda region: (groups.index(region.warp_group), -region.share))


def _percent(share: float) -> str:
    return f"{share:.0%}" if abs(share) >= 0.1 else f"{share:.1%}"


def _packed(trace: bytes) -> str:
    """For a link that saves it."""
    return "data:application/gzip;base64," + base64.b64encode(trace).decode()
