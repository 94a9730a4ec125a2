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
    """Lines of Markdown: for each GPU a table with a row an example that was traced with several Tritons.

    `versions`: in the order of their numbers; the first that has readings is the one that others are compared with.
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

    head = (
        f"example on {gpu}",
        f"findings with Triton {first}",
        "findings with newer Triton",
        "ms of a launch without timestamps (Triton version)",
        "cycles with timestamps (Triton version)",
    )
    rows = [
        _row(kernel, {version: readings.get(Place(gpu, kernel, version)) for version in versions})
        for kernel, times in traced.items()
        if times > 1
    ]
    lines = md.table(head, rows)
    for version in others:
        count = sum(place.triton == version for place in compared)
        names = sorted(place.kernel for place in apart if place.triton == version)
        sentence = (
            f"On {gpu}, kperf reports the same with Triton {version} as with Triton {first} for "
            f"{count - len(names)} of {count} {agreeing(count, 'example', 'examples')}"
        )
        lines += ["", f"{sentence}, but not for {', '.join(names)}." if names else f"{sentence}."]
    return lines


def _row(kernel: str, by_version: Mapping[str, Reading | None]) -> list[str]:
    """The first version's conclusions, the others' where they are not the same, and the numbers of each."""
    first, *others = by_version
    base = by_version[first]
    apart = [
        f"{version}: {_conclusions(one, base)}"
        for version in others
        if (one := by_version[version]) is not None and (base is None or not one.agrees(base))
    ]
    ran = [(version, one) for version, one in by_version.items() if one is not None]
    units = dict.fromkeys(one.unit for _, one in ran)
    times = [f"{one.launch_ms:.3f} ({version})" for version, one in ran]
    cycles = [f"{one.cycles:.0f} ({version})" for version, one in ran]
    return [
        kernel,
        "not run" if base is None else _conclusions(base),
        "; ".join(apart) or "the same",
        ", ".join(times),
        f"{' or '.join(units)}: {', '.join(cycles)}",
    ]


def _conclusions(one: Reading, base: Reading | None = None) -> str:
    """Findings, whether the MMAs bound an iteration, and the view where that of `base` is another."""
    found = ", ".join(f"{name} ({severity})" for name, severity in one.findings.items()) or "no finding"
    bound = "; MMAs fill the iteration" if one.at_bound else ""
    view = f", view {one.view} instead of {base.view}" if base is not None and one.view != base.view else ""
    return f"{found}{bound}{view}"
