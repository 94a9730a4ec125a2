"""A traced kernel as it is reported, whatever the format."""

import gzip
from dataclasses import dataclass
from pathlib import Path

from kperf.ir import kept
from kperf.ir.kept import KeptIr
from kperf.report.events import TracedCta, read_typical_cta, trace_beside
from kperf.report.sentences import verdict
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline


@dataclass(frozen=True)
class Report:
    """A traced kernel as it is reported: facts and findings, the events of a typical CTA, the packed Chrome trace.

    `cta` and `trace` are None where no Chrome trace lies beside the timeline, `ir` where the kernel's IR does not, and
    `path` where the timeline was read from no file.
    """

    timeline: Timeline
    cta: TracedCta | None
    trace: bytes | None
    ir: KeptIr | None = None
    path: Path | None = None


def read_report(path: Path) -> Report:
    """The report of a `<name>.timeline.json`, with the Chrome trace and the IR beside it.

    Raises `UsageError` if the timeline is missing, or one of them is damaged.
    """
    timeline, beside = read_timeline(path), trace_beside(path)
    if not timeline.verdict:  # one of version 2
        timeline = timeline.model_copy(update={"verdict": verdict(timeline)})
    levels = path.with_name(path.name.removesuffix(".timeline.json") + kept.SUFFIX)
    ir = kept.read(levels) if levels.is_file() else None
    if beside is None:
        return Report(timeline, None, None, ir, path)
    content = beside.read_bytes()
    packed = content if beside.suffix == ".gz" else gzip.compress(content, mtime=0)
    return Report(timeline, read_typical_cta(beside), packed, ir, path)
