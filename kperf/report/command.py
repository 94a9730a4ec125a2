"""`kperf report`: timelines in, one page out, in the format that its name ends with."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from rich.console import Console

from kperf.console import shell_word
from kperf.errors import UsageError
from kperf.record.files import make_output, write_atomically
from kperf.report.report import Report, read_report
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline

FORMATS = {".html": "html", ".md": "markdown"}
"""How the page's name ends -> the module here whose `page(reports, sources)` gives its text."""


Find = Callable[[Timeline], Sequence[Finding]]
"""What rules find in a timeline: rules know reports, so that reports are handed them."""


def write(console: Console, paths: Sequence[Path], sources: Path, out: Path, find: Find) -> None:
    """Write the page of the timelines that `paths` name, files or folders, and print where it is.

    `sources`: the folder from which the kernels' files are named. `find` adds to a timeline's own findings. Raises
    `UsageError` if there is no timeline, one is damaged, or `out` cannot be written or ends with no known format.
    """
    if out.suffix not in FORMATS:
        raise UsageError(f"{out} is of no known format: end its name with {' or '.join(FORMATS)}")
    timelines = [one for path in paths for one in (sorted(path.glob("*.timeline.json")) if path.is_dir() else [path])]
    if not timelines:
        raise UsageError("there is no timeline to report: give *.timeline.json files or their folder")
    page: Callable[[Sequence[Report], Path], str] = import_module(f"kperf.report.{FORMATS[out.suffix]}").page
    reports = [_with_findings(read_report(path), find) for path in timelines]
    text = page(_told_apart(timelines, reports), sources)
    make_output(out.parent)
    write_atomically(out, text)
    console.print(f"written: {shell_word(out)} ({len(timelines)} kernels, {len(text) / 1e6:.1f} MB)")


def _with_findings(report: Report, find: Find) -> Report:
    known = report.timeline.findings
    added = [one for one in find(report.timeline) if one.id not in {own.id for own in known}]
    return replace(report, timeline=report.timeline.model_copy(update={"findings": [*known, *added]}))


def _told_apart(paths: Sequence[Path], reports: Sequence[Report]) -> list[Report]:
    """With the folder in a kernel's label where there are several folders: that of a rank (`rank3`), of a run."""
    folders = [path.absolute().parent.name for path in paths]
    if len(set(folders)) < 2:
        return list(reports)
    return [
        replace(one, timeline=one.timeline.model_copy(update={"label": f"{one.timeline.label} ({folder})"}))
        for one, folder in zip(reports, folders, strict=True)
    ]
