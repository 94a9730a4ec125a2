"""`kperf report`: timelines in, one page out, in the format that its name ends with."""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path

from rich.console import Console

from kperf.console import shell_word
from kperf.errors import UsageError
from kperf.record.files import make_output, write_atomically
from kperf.report.report import Report, read_report
from kperf.report.samples import Samples
from kperf.trace.analyze.finding import Finding
from kperf.trace.analyze.models import Timeline

FORMATS = {".html": "html", ".md": "markdown"}
"""How the page's name ends -> the module here whose `page(reports, sources, samples)` gives its text."""


Page = Callable[[Sequence[Report], Path, Sequence[Samples]], str]
Find = Callable[[Timeline], Sequence[Finding]]
"""What rules find in a timeline: rules know reports, so that reports are handed them."""


def write(
    console: Console, paths: Sequence[Path], sources: Path, out: Path, find: Find, samples: Sequence[Samples] = ()
) -> None:
    """Write the page of the timelines that `paths` name, files or folders of a trace, and print where it is.

    `sources`: the folder from which the kernels' files are named. `find` adds to a timeline's own findings; `samples`
    stand beside cycles. Raises `UsageError` if there is no timeline, one is damaged, or `out` cannot be written or ends
    with no known format.
    """
    if out.suffix not in FORMATS:
        raise UsageError(f"{out} is of no known format: end its name with {' or '.join(FORMATS)}")
    timelines = [timeline for path in paths for timeline in (_timelines_in(path) if path.is_dir() else [path])]
    if not timelines:
        raise UsageError("there is no timeline to report: give *.timeline.json files or their folder")
    page: Page = import_module(f"kperf.report.{FORMATS[out.suffix]}").page
    reports = [_with_findings(read_report(path), find) for path in timelines]
    text = page(_told_apart(timelines, reports), sources, samples)
    make_output(out.parent)
    write_atomically(out, text)
    kernels = f"{len(timelines)} kernel{'s' * (len(timelines) > 1)}"
    console.print(f"written: {shell_word(out)} ({kernels}, {len(text) / 1e6:.1f} MB)")


def _timelines_in(folder: Path) -> list[Path]:
    """Those that `kperf trace` wrote there: of one process, or of torchrun's in the order of their ranks."""
    ranks = sorted(folder.glob("rank*[0-9]"), key=lambda rank: int(re.sub(r"\D", "", rank.name)))
    return [path for place in (folder, *ranks) for path in sorted(place.glob("*.timeline.json"))]


def _with_findings(report: Report, find: Find) -> Report:
    known = report.timeline.findings
    added = [finding for finding in find(report.timeline) if finding.id not in {own.id for own in known}]
    return replace(report, timeline=report.timeline.model_copy(update={"findings": [*known, *added]}))


def _told_apart(paths: Sequence[Path], reports: Sequence[Report]) -> list[Report]:
    """With what tells them apart in the labels: the folder of a rank (`rank3`) or a run, the file of a kernel's own."""
    folders = [path.absolute().parent.name for path in paths]
    files = [path.name.removesuffix(".timeline.json") for path in paths]
    labels = [each.timeline.label for each in reports]
    if len(set(folders)) > 1:
        labels = [f"{label} ({folder})" for label, folder in zip(labels, folders, strict=True)]
    count = Counter(labels)
    labels = [f"{label} ({file})" if count[label] > 1 else label for label, file in zip(labels, files, strict=True)]
    return [
        replace(each, timeline=each.timeline.model_copy(update={"label": label}))
        for each, label in zip(reports, labels, strict=True)
    ]
