"""A table of traced kernels in Markdown, for a pull request or a CI log."""

from collections.abc import Sequence
from pathlib import Path

from kperf.record.markdown import row
from kperf.report.report import Report
from kperf.report.samples import Samples

_COLUMNS = ("kernel", "file", "time of a launch", "SM cycles", "tensor core use of the SM", "confidence", "findings")


def page(reports: Sequence[Report], sources: Path, samples: Sequence[Samples] = ()) -> str:  # noqa: ARG001 - as any format
    """A row a kernel."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS), *map(_cells, reports)]
    return "".join(f"{row(cells)}\n" for cells in rows)


def _cells(report: Report) -> tuple[str, ...]:
    timeline = report.timeline
    use = timeline.mma_use.sm if timeline.mma_use is not None else None
    return (
        timeline.label,
        timeline.file,
        f"{timeline.overhead.launch_ms:.3f} ms",
        f"{timeline.cycles_per_unit.median:,.0f} per {timeline.unit}",
        "-" if use is None else f"{use:.0%}",
        timeline.confidence.level,
        "; ".join(finding.message for finding in timeline.findings) or "-",
    )
