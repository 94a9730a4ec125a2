"""What `kperf trace` makes of a timeline: sentences, a Chrome trace, and a picture if there is who draws."""

from kperf.report.chrome import export
from kperf.report.sentences import verdict
from kperf.trace.results import Draw, Formats


def formats(draw: Draw) -> Formats:
    """All formats of a traced kernel, its picture drawn by `draw`."""
    return Formats(draw, verdict, export)
