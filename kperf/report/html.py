"""One self-contained HTML page of one or more traced kernels: no network, readable on a phone and on paper."""

import base64
import linecache
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from bokeh.embed import components
from bokeh.model import Model
from bokeh.resources import Resources
from markupsafe import Markup

from kperf.ir.levels import Line
from kperf.report.diff import rows
from kperf.report.figure import KINDS, kinds_of, timeline_figure
from kperf.report.ladder import Ladder
from kperf.report.ladder_page import panes
from kperf.report.report import Report
from kperf.report.samples import Samples, of_timeline, told_apart
from kperf.report.templates import inside, render
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import RegionTime, Timeline

LINES_AROUND = 4
"""Lines of source that are shown before the first and after the last line that has numbers."""


_ROW_LETTERS = 80
"""Of the markup of a line of the ladder."""
MOST_IR_LETTERS = 2_500_000
"""Of the ladder of one kernel: a page has less than 5 MB a kernel."""
_RANK = re.compile(r"rank\d+")
"""The folder that `kperf trace` makes for each process of a job."""


@dataclass(frozen=True)
class SourceLine:
    """A line of the user's source: cycles an iteration (or a CTA) of each warp group, and what was found there.

    samples: of each profile in their order, all and those that were stalled, and what most of them wait for.
    """

    number: int
    text: str
    cycles: dict[str, float]
    findings: tuple[Finding, ...]
    samples: tuple[tuple[int, int, str], ...]


def page(reports: Sequence[Report], sources: Path, samples: Sequence[Samples] = ()) -> str:
    """The page's text. `sources`: the folder from which the kernels' files are named."""
    figures: dict[str, Model] = {
        f"timeline{number}": timeline_figure(report.cta, report.timeline, f"timeline{number}")
        for number, report in enumerate(reports)
        if report.cta is not None
    }
    script, places = components(figures) if figures else ("", {})
    timelines = [report.timeline for report in reports]
    before_and_after = _is_before_and_after(reports)
    profiles = [
        told_apart([*of_timeline(timeline), *(profile for profile in samples if profile.total(timeline.kernel))])
        for timeline in timelines
    ]
    ladders = [_ladder(report, sources) for report in reports]
    return render(
        "page.html.jinja",
        {"percent": _percent, "cycles": "{:,.0f}".format, "packed": _packed},
        reports=reports,
        facts=rows(timelines, change=before_and_after),
        before_and_after=before_and_after,
        sentences=[_sentences(report) for report in reports],
        kinds=KINDS,
        keys=[_keys(report) for report in reports],
        profiles=profiles,
        listings=[listing(timeline, sources, own) for timeline, own in zip(timelines, profiles, strict=True)],
        rows=[_by_share(report.timeline.regions) for report in reports],
        ladders=ladders,
        panes=[panes(ladder) if ladder else [] for ladder in ladders],
        places=[Markup(places.get(f"timeline{number}", "")) for number in range(len(reports))],
        style=inside("page.css") + inside("ladder.css"),
        controls=inside("page.js") + inside("ladder.js"),
        bokeh=Markup(Resources(mode="inline", components=["bokeh"]).render_js() if figures else ""),
        script=Markup(script),
    )


def listing(timeline: Timeline, sources: Path, samples: Sequence[Samples] = ()) -> list[SourceLine]:
    """The kernel's source around the lines that have cycles, samples or findings; empty where the file is not there.

    Cycles of a region count at its first operation's line, for a unit of the timeline (an iteration, or a CTA).
    """
    name, _, _ = timeline.file.rpartition(":")
    cycles: dict[int, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    findings: dict[int, list[Finding]] = defaultdict(list)
    for region in timeline.regions:
        if region.source is not None and region.source.file == name and region.per_iteration is not None:
            cycles[region.source.line][region.warp_group] += region.per_iteration
    for finding in timeline.findings:
        if finding.source.file == name:
            findings[finding.source.line].append(finding)
    sampled = [counts.of_lines(timeline.kernel, name) for counts in samples]
    numbers = [*cycles, *findings, *chain.from_iterable(sampled)]
    lines = linecache.getlines(str(sources / name)) if numbers else []
    shown = range(max(min(numbers, default=1) - LINES_AROUND, 1), max(numbers, default=0) + LINES_AROUND + 1)
    return [
        SourceLine(
            number,
            lines[number - 1].rstrip("\n"),
            dict(cycles.get(number, {})),
            tuple(findings.get(number, ())),
            tuple(counts.get(number, (0, 0, "")) for counts in sampled),
        )
        for number in shown
        if number <= len(lines)
    ]


def _is_before_and_after(reports: Sequence[Report]) -> bool:
    """Of two runs of one kernel on one GPU; two ranks, or two compilations of one run, stand beside each other."""
    if len(reports) != 2:
        return False
    environments = [report.timeline.environment for report in reports]
    folders = {report.path.absolute().parent.name for report in reports if report.path is not None}
    return (
        len({report.timeline.kernel for report in reports}) == 1
        and len({environment.gpu_uuid for environment in environments}) == 1
        and len({environment.recorded_at for environment in environments}) == 2
        and len([folder for folder in folders if _RANK.fullmatch(folder)]) < 2
    )


def _ladder(report: Report, sources: Path) -> Ladder | None:
    """The kernel's levels with its findings; those that make the page too large are left out, LLVM IR first."""
    if report.ir is None:
        return None
    levels, notes = report.ir.lines(), []

    def here(file: str) -> str:
        return str(sources / file)

    for level in ("llir", "ptx", "ttir", "ttgir", "sass", "gcn"):
        if sum(len(line.text) + _ROW_LETTERS for lines in levels.values() for line in lines) <= MOST_IR_LETTERS:
            break
        if levels.pop(level, None):
            notes.append(f"{level} would make this page too large: `kperf ir SCRIPT --level {level}` shows it")
    named = {level: [_moved(line, here) for line in lines] for level, lines in levels.items()}
    findings = [
        finding.model_copy(update={"source": finding.source.model_copy(update={"file": here(finding.source.file)})})
        for finding in report.timeline.findings
    ]
    file, _, _ = report.timeline.file.rpartition(":")
    return Ladder(report.ir.kernel, report.ir.target, here(file), named, findings, notes)


def _moved(line: Line, here: Callable[[str], str]) -> Line:
    return replace(line, frames=tuple(replace(frame, file=here(frame.file)) for frame in line.frames))


def _sentences(report: Report) -> list[str]:
    """What was read, each without the kernel's name, under which it stands."""
    names = (f"{report.timeline.label}: ", f"{report.timeline.kernel}: ")
    sentences = []
    for sentence in report.timeline.verdict:
        rest = next((sentence[len(name) :] for name in names if sentence.startswith(name)), None)
        sentences.append(sentence if rest is None else rest[:1].upper() + rest[1:])
    return sentences


def _keys(report: Report) -> list[tuple[str, str]]:
    """Words and colour of each kind of event that is drawn, each once."""
    if report.cta is None:
        return []
    drawn = {kind for kinds in kinds_of(report.cta, report.timeline) for kind in kinds}
    return list(dict.fromkeys(look for kind, look in KINDS.items() if kind in drawn))


def _by_share(regions: Sequence[RegionTime]) -> list[RegionTime]:
    """Of each warp group the largest first, groups in their order."""
    groups = list(dict.fromkeys(region.warp_group for region in regions))
    return sorted(regions, key=lambda region: (groups.index(region.warp_group), -region.share))


def _percent(share: float) -> str:
    return f"{share:.0%}" if abs(share) >= 0.1 else f"{share:.1%}"


def _packed(trace: bytes) -> str:
    """For a link that saves it."""
    return "data:application/gzip;base64," + base64.b64encode(trace).decode()
