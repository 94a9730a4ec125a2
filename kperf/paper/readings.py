"""What traces of the examples say with one Triton beside another: rows small enough to keep, and their table."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pydantic import PositiveFloat

from kperf.console import agreeing
from kperf.diagnose.engine import found_in
from kperf.record import markdown as md
from kperf.record.store import Frozen
from kperf.report.sentences import verdict
from kperf.trace.analyze import facts
from kperf.trace.analyze.finding import Level
from kperf.trace.analyze.models import Timeline, Unit, View

_CELL = "findings; time of a launch without events; time of an iteration or a CTA with events"
"""What a cell of the tables holds."""
_SENTENCES = 3
"""Of a verdict that are kept."""


class Reading(Frozen):
    """What a timeline says, without the timeline.

    Attributes:
        gpu: its name.
        view: what the reading looks at.
        findings: severity of each finding by its rule's id, the worst first.
        at_bound: whether an iteration takes no longer than its MMAs.
        confidence: of the reading.
        launch_ms: of the original kernel.
        unit, cycles: of an iteration or of a CTA, the median.
        verdict: its first sentences.
        ratio: instrumented over original time, None where the script launched the kernel once.
        compute_use: share of the SM's peak rate, None for a kernel without MMAs.
        registers, spilled_bytes: of a thread of the original kernel, None where they were not read.
    """

    gpu: str
    view: View
    findings: dict[str, Level]
    at_bound: bool
    confidence: Level
    launch_ms: PositiveFloat
    unit: Unit
    cycles: float
    verdict: list[str]
    ratio: PositiveFloat | None = None
    compute_use: float | None = None
    registers: int | None = None
    spilled_bytes: int | None = None

    def agrees(self, other: "Reading") -> bool:
        """Whether both come to the same conclusions, whatever their numbers are."""
        return (self.view, self.at_bound, self.findings) == (other.view, other.at_bound, other.findings)


def reading(timeline: Timeline) -> Reading:
    """Of a recorded trace, by the rules and sentences of today."""
    resources = timeline.resources.original if timeline.resources else None
    use = timeline.compute_use
    return Reading(
        gpu=timeline.environment.gpu,
        view=timeline.view,
        findings={finding.id: finding.severity for finding in found_in(timeline)},
        at_bound=facts.at_bound(timeline),
        confidence=timeline.confidence.level,
        launch_ms=timeline.overhead.launch_ms,
        ratio=timeline.overhead.ratio,
        unit=timeline.unit,
        cycles=timeline.iteration.cycles if timeline.iteration else timeline.cycles_per_unit.median,
        compute_use=use.sm if use else None,
        registers=resources.registers if resources else None,
        spilled_bytes=resources.spilled_bytes if resources else None,
        verdict=verdict(timeline)[:_SENTENCES],
    )


class Place(NamedTuple):
    """Where a reading stands in the tables."""

    gpu: str
    kernel: str
    triton: str


def tables(readings: Mapping[Place, Reading], versions: Sequence[str]) -> list[str]:
    """Lines of Markdown: for each GPU a column a Triton, and a row an example that was traced with several.

    `versions`: in the order of the columns; the first that has readings is the one that others are compared with.
    """
    lines = []
    for gpu in sorted({place.gpu for place in readings}):
        here = {place: one for place, one in readings.items() if place.gpu == gpu}
        columns = [version for version in versions if any(place.triton == version for place in here)]
        if len(columns) > 1:
            lines += ["", *_table(gpu, here, columns)]
    return lines


def _table(gpu: str, readings: Mapping[Place, Reading], versions: Sequence[str]) -> list[str]:
    """A table, and below it a sentence a Triton that counts the readings which agree."""
    first, *others = versions
    traced = Counter(place.kernel for place in readings)
    compared = {place: readings[base] for place in readings if (base := Place(gpu, place.kernel, first)) in readings}
    apart = {place for place, known in compared.items() if not readings[place].agrees(known)}

    def cell(place: Place) -> str:
        if place not in readings:
            return "not run"
        shown = readings[place]
        base = readings.get(Place(gpu, place.kernel, first), shown)
        view = f"; view {shown.view} instead of {base.view}" if shown.view != base.view else ""
        return f"{f'**differs from {first}**: ' if place in apart else ''}{_conclusions(shown)}{view}"

    lines = md.table(
        [f"example on {gpu}", *(f"Triton {version}: {_CELL}" for version in versions)],
        [
            [kernel, *(cell(Place(gpu, kernel, version)) for version in versions)]
            for kernel, times in traced.items()
            if times > 1
        ],
    )
    for version in others:
        count = sum(place.triton == version for place in compared)
        differing = sorted(place.kernel for place in apart if place.triton == version)
        sentence = (
            f"On {gpu}, Triton {version} gives the same view and findings as Triton {first} for "
            f"{count - len(differing)} of {count} {agreeing(count, 'example', 'examples')}"
        )
        lines += ["", f"{sentence}; they differ for {', '.join(differing)}." if differing else f"{sentence}."]
    return lines


def _conclusions(one: Reading) -> str:
    """Findings, and the times behind them: of a launch without events, and of an iteration or CTA with events."""
    found = ", ".join(f"{name} ({severity})" for name, severity in one.findings.items()) or "no finding"
    bound = ", no longer than its MMAs" if one.at_bound else ""
    cycles = f"{'iteration' if one.unit == 'iteration' else 'CTA'} {one.cycles:.0f} cycles{bound}"
    return f"{found}; launch {one.launch_ms:.3f} ms; {cycles}"
