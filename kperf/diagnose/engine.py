"""Runs the rules on a kernel, merges what they say of one line, silences what the source ignores, and sorts."""

import itertools
import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from kperf.diagnose.analyses.bound import as_measured, bound_of
from kperf.diagnose.analyses.loops import longest_loops
from kperf.diagnose.finding import Bound, Diagnosis, Unit
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, source_of
from kperf.diagnose.rule import DynamicRule, Rule, doubts_results, dynamic_rules, static_rules
from kperf.diagnose.thresholds import TUNED_GAIN
from kperf.diagnose.witness import witnessed
from kperf.errors import UsageError
from kperf.report.sentences import verdict
from kperf.trace.analyze.finding import LEVELS, Finding, Level, Source
from kperf.trace.analyze.models import Timeline

_IGNORE = re.compile(r"#\s*kperf:\s*ignore\[([\w\-, ]+)\]\s*(\S.*)?$")
EXPLAINS = "explains"
"""Evidence: the rules, beside its own, whose findings at the line a finding has the cause of."""
FAILED = "the rule itself failed"
IGNORE_WITHOUT_REASON = "needs a reason: `# kperf: ignore[id] why`"


def diagnose(kernel: Kernel, timelines: Sequence[Timeline] = ()) -> Diagnosis:
    """Everything that rules find in a kernel, the worst first, and what bounds it.

    Of `timelines` those of this kernel are read by the dynamic rules. Where all of its launches are near a bound, what
    is found in each of them is a hint. A launch that is slower keeps its advice, however fast another is.
    """
    found: list[Finding] = []
    skipped: dict[str, str] = {}
    for rule in static_rules():
        if not kernel.arch.name.startswith(rule.targets):
            continue
        lacks = rule.lacks(kernel)
        if lacks is None:
            found += _found_by(rule, kernel, skipped)
        else:
            skipped[rule.id] = lacks
    found = _causes(found)
    mine = [timeline for timeline in timelines if timeline.kernel == kernel.name]
    most = math.inf
    for one in dynamic_rules():
        of_launches = [_found_by(one, timeline, skipped) for timeline in mine]
        for measured in itertools.chain(*of_launches):
            of_kernel = _of_kernel(one, measured, kernel, skipped)
            found = _with_measured(found, of_kernel, one.explained_by, kernel)
        if one.is_bound and mine:
            most = min(most, max(map(_most_of, of_launches)))
    if math.isfinite(most):
        unlimited = {rule.id for rule in static_rules() if rule.moves_less or rule.of_results}
        if most < TUNED_GAIN:  # a hint would say that it gains nothing
            said = unlimited | {rule.id for rule in dynamic_rules()}
            found = [one for one in found if one.estimate is None or one.id in said]
        found = [one if one.id in unlimited else _within(one, most) for one in found]
    kept, ignored = without_ignored(merged(_without_own(one, kernel) for one in found))
    return Diagnosis(
        kernel=kernel.name,
        target=kernel.arch.name,
        findings=ranked(witnessed(one, mine) for one in kept),
        bound=as_measured(bound_of(kernel), mine),
        source=source_of(frame_of(kernel.module.function)),
        constants={name: one for name, one in kernel.constants.items() if isinstance(one, int | float | str)},
        skipped=skipped,
        ignored=ignored,
    )


def _found_by(rule: Rule | DynamicRule, subject: Any, skipped: dict[str, str]) -> list[Finding]:
    """What a rule finds in a kernel or in a timeline. An error of its own costs its findings, and no other rule's.

    Raises `UsageError` if the kernel's machine code cannot be read.
    """
    try:
        return list(rule.check(subject))
    except UsageError:
        raise
    except Exception as error:
        skipped[rule.id] = f"{FAILED} with {type(error).__name__}"
        return []


def _of_kernel(rule: DynamicRule, measured: Finding, kernel: Kernel, skipped: dict[str, str]) -> Finding:
    """A finding with what the kernel's code says; as a timeline has it, if that fails. Raises as `_found_by`."""
    try:
        return rule.of_kernel(measured, kernel)
    except UsageError:
        raise
    except Exception as error:
        skipped[rule.id] = f"{FAILED} with {type(error).__name__}"
        return measured


def _causes(findings: Sequence[Finding]) -> list[Finding]:
    """Without the findings whose cause another rule names at the same line, which has what they show as evidence."""
    explained_by = {rule.id: rule.explained_by for rule in static_rules()}
    at_line: dict[Source, list[Finding]] = {}
    for finding in findings:
        at_line.setdefault(finding.source, []).append(finding)

    def explains(cause: Finding, effect: Finding) -> bool:
        return cause.id in explained_by[effect.id]

    return [
        _with_effects(finding, [one for one in at_line[finding.source] if explains(finding, one)])
        for finding in findings
        if not any(explains(cause, finding) for cause in at_line[finding.source])
    ]


def _with_effects(cause: Finding, effects: Sequence[Finding]) -> Finding:
    """With the evidence of what it explains, and the names of those rules."""
    shown = {name: value for one in effects for name, value in one.evidence.items()}
    rules = ", ".join(sorted({one.id for one in effects}))
    return cause.model_copy(update={"evidence": shown | cause.evidence | {EXPLAINS: rules}}) if effects else cause


def _with_measured(
    findings: Sequence[Finding], measured: Finding, causes: Sequence[str], kernel: Kernel
) -> list[Finding]:
    """With what a timeline shows: as evidence of the finding that names its cause at that line, else as its own.

    The estimate stays the cause's: what waits could save at most says little of what stands behind them. A timeline
    shows the loop that runs most often: of several loops that have the line, what is found in another one is no cause.
    """
    at_line = [one for one in findings if one.id in causes and _at_one_line(one.source, measured.source)]

    def explains(one: Finding) -> bool:
        if one not in at_line or "loop_line" not in one.evidence:
            return one in at_line
        longest = longest_loops(kernel, one.source)
        alike = {other.evidence.get("loop_line") for other in at_line if other.id == one.id}
        return one.evidence["loop_line"] in longest <= alike

    if not any(map(explains, findings)):
        return [*findings, measured]
    return [_together_with(one, measured) if explains(one) else one for one in findings]


def _at_one_line(one: Source, other: Source) -> bool:
    """A timeline names a file from the command's folder, where it lies in it; what is compiled names it whole."""
    files = one.file, other.file
    return one.line == other.line and any(a == b or a.endswith(f"/{b}") for a, b in (files, files[::-1]))


def _most_of(bounds: Sequence[Finding]) -> float:
    """The most that any advice gives a launch of which a rule says these; infinity where it says no such number."""
    return min((one.estimate.high for one in bounds if one.estimate is not None), default=math.inf)


def _within(finding: Finding, most: float) -> Finding:
    """A hint, with an estimate of no more than `most`."""
    estimate = finding.estimate
    if estimate is not None:
        numbers = {name: min(getattr(estimate, name), most) for name in ("speedup", "low", "high")}
        estimate = estimate.model_copy(update=numbers)
    return finding.model_copy(update={"severity": LEVELS[-1], "estimate": estimate})


def _together_with(cause: Finding, measured: Finding) -> Finding:
    return cause.model_copy(
        update={
            "severity": min(cause.severity, measured.severity, key=LEVELS.index),
            "message": f"{cause.message}; {measured.message}",
            "evidence": cause.evidence | measured.evidence,
            "candidates": cause.candidates + [one for one in measured.candidates if one not in cause.candidates],
        }
    )


def _without_own(finding: Finding, kernel: Kernel) -> Finding:
    """Without the candidates that are what the kernel was compiled with."""
    own = kernel.configuration
    others = [one for one in finding.candidates if any(own.get(name) != value for name, value in one.items())]
    return finding if others == finding.candidates else finding.model_copy(update={"candidates": others})


def found_in(timeline: Timeline) -> list[Finding]:
    """What dynamic rules find in a timeline, the worst first."""
    return diagnose_timeline(timeline).findings


OF_A_TIMELINE = "measured"
"""The `target` of a diagnosis that a timeline alone gave."""


def diagnose_timeline(timeline: Timeline) -> Diagnosis:
    """Everything that dynamic rules find in a timeline, the worst first, and what bounds it."""
    skipped: dict[str, str] = {}
    of_rules = [(rule, _found_by(rule, timeline, skipped)) for rule in dynamic_rules()]
    most = min((_most_of(found) for rule, found in of_rules if rule.is_bound), default=math.inf)
    found = itertools.chain(*(found for _, found in of_rules))
    kept, ignored = without_ignored(merged(_within(one, most) if math.isfinite(most) else one for one in found))
    unit: Unit = "tensor core" if timeline.unit_of_compute == "tensor core" else "unknown"
    if timeline.memory is not None and timeline.unit_of_compute == "none":
        unit = "memory"
    said = timeline.verdict or verdict(timeline)
    return Diagnosis(
        kernel=timeline.kernel,
        target=OF_A_TIMELINE,
        findings=ranked(witnessed(one, [timeline]) for one in kept),
        bound=Bound(unit=unit, message=" ".join(said[:1]) or "its timeline says nothing more"),
        source=_begin(timeline.file),
        skipped=skipped,
        ignored=ignored,
    )


def _begin(file: str) -> Source:
    """A timeline's `file`: `path:line`, or a path alone."""
    path, _, line = file.rpartition(":")
    return Source(file=path, line=int(line)) if line.isdecimal() else Source(file=file, line=0)


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """One finding a rule and line: the worst. A pipelined loop has each of its loads twice and more."""
    best: dict[tuple[str, str, int], Finding] = {}
    for finding in findings:
        key = key_of(finding)
        if key not in best or _rank(finding) < _rank(best[key]):
            best[key] = finding
    return list(best.values())


def key_of(finding: Finding) -> tuple[str, str, int]:
    """Its rule and line."""
    return finding.id, finding.source.file, finding.source.line


def ranked(findings: Iterable[Finding]) -> list[Finding]:
    """The worst first: by severity, then what may make results wrong, then by samples and by what the advice gives.

    Of equal severity a rule's further lines follow the other rules' first ones: their advice is the same again.
    """
    again: Counter[tuple[str, Level]] = Counter()
    placed = []
    for finding in sorted(findings, key=_rank):
        placed.append((LEVELS.index(finding.severity), again[finding.id, finding.severity], finding))
        again[finding.id, finding.severity] += 1
    return [finding for *_, finding in sorted(placed, key=lambda one: one[:2])]


def _rank(finding: Finding) -> tuple[int, bool, bool, float, int, str]:
    """Samples that do not show what a finding says put it behind its equals: what it costs is estimated."""
    gain = finding.estimate.speedup if finding.estimate is not None else 1.0
    timed = any(one.low >= TUNED_GAIN for one in finding.tried)
    disagree = not timed and finding.witness is not None and finding.witness.agreement == "disagrees"
    severity, confidence = LEVELS.index(finding.severity), LEVELS.index(finding.confidence)
    return severity, not doubts_results(finding), disagree, -gain, confidence, finding.id


def without_ignored(findings: Iterable[Finding]) -> tuple[list[Finding], list[str]]:
    """Findings that their line (or the line above, or that of the `def`) does not silence, and words on the others."""
    kept, ignored = [], []
    for finding in findings:
        reason = _ignored_by(finding)
        if reason:
            ignored.append(f"{finding.id} at line {finding.source.line}: {reason}")
        else:
            kept.append(finding)
    return kept, ignored


def _ignored_by(finding: Finding) -> str | None:
    """The reason why a finding is ignored; None if it is not, or if no reason is given."""
    try:
        lines = Path(finding.source.file).read_text().splitlines() if finding.source.file else []
    except (OSError, ValueError):
        return None
    above = finding.source.line - 1
    while 0 < above <= len(lines) and lines[above - 1].strip().startswith("#"):
        above -= 1
    for number in range(max(above, 0), finding.source.line + 1):
        match = _IGNORE.search(lines[number - 1]) if 0 < number <= len(lines) else None
        on_its_own = match is not None and lines[number - 1].strip().startswith("#")
        if match and (number == finding.source.line or on_its_own):
            ids = {name.strip() for name in match[1].split(",")}
            if finding.id in ids and match[2]:
                return match[2].strip()
    return None
