"""The second witness: whether the GPU's samples of the original kernel show what a finding says."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kperf.diagnose.thresholds import WITNESSED
from kperf.report.samples import is_same_file
from kperf.trace.analyze.finding import Finding, Witness
from kperf.trace.analyze.models import PcSamples, Timeline
from kperf.trace.analyze.stalls import COMPUTING, GLOBAL, HALF, LEAST_SAMPLES, MMAS, SHARED, STALLS, warps_of


@dataclass(frozen=True)
class Evidence:
    """Which samples show a fault.

    here: what warps wait for at its line. awaited: likewise at any line, if it is a result of its line that they wait
    for. anywhere: at any line, of kernels whose fault has no line of its own. why: the reason for this choice.
    """

    why: str
    here: frozenset[str] = frozenset()
    awaited: frozenset[str] = frozenset()
    anywhere: frozenset[str] = frozenset()


_LOAD = Evidence(
    "a warp is sampled where it uses what was loaded, or where the queue of requests is full",
    here=GLOBAL,
    awaited=GLOBAL,
)
_LATENCY = Evidence("waits for loads, wherever the loop has them", anywhere=GLOBAL)
_SHARED = Evidence(
    "accesses of shared memory queue at their line, and what they bring is awaited; other warps meet at a barrier",
    here=SHARED | {"barrier"},
    awaited=SHARED,
)
_ARITHMETIC = Evidence(
    "at its line warps issue, are ready, or wait for a unit or for the instruction before", here=COMPUTING | SHARED
)
_MMA = Evidence(
    "MMAs that warps wait for, at their line", here=MMAS | {"math_pipe_throttle", "wait", "short_scoreboard"}
)
_ATOMIC = Evidence(
    "atomics queue like loads, and a fence waits for all of them",
    here=GLOBAL | {"membar", "drain"},
    awaited=GLOBAL,
)

EVIDENCE = {
    "uncoalesced-access": _LOAD,
    "narrow-access": _LOAD,
    "mask-stops-vectors": _LOAD,
    "redundant-load": _LOAD,
    "both-sides-loaded": _LOAD,
    "zeroed-after-reading": _LOAD,
    "window-summed-anew": _LOAD,
    "few-bytes-in-flight": _LATENCY,
    "loads-not-pipelined": _LATENCY,
    "too-few-stages": _LATENCY,
    "tma-unused": _LATENCY,
    "exposed-loads": _LATENCY,
    "late-producer": _LATENCY,
    "bank-conflicts": _SHARED,
    "conversion-in-loop": _SHARED,
    "reduction-in-loop": _SHARED,
    "dot-on-fma": _ARITHMETIC,
    "dot-by-hand": _ARITHMETIC,
    "exposed-arithmetic": Evidence("warps that compute, wherever the loop does", anywhere=COMPUTING | SHARED),
    "float64": _ARITHMETIC,
    "instruction-bound": _ARITHMETIC,
    "int64-index": _ARITHMETIC,
    "loop-division": _ARITHMETIC,
    "scalar-loop": _ARITHMETIC,
    "scan-by-hand": _ARITHMETIC,
    "full-sort": _ARITHMETIC,
    "linear-search": _ARITHMETIC,
    "lookup-by-comparison": _ARITHMETIC,
    "quadratic-ranking": _ARITHMETIC,
    "slow-math": _ARITHMETIC,
    "table-recomputed": _ARITHMETIC,
    "random-numbers": _ARITHMETIC,
    "wgmma-serialised": _MMA,
    "wgmma-unused": _MMA,
    "widened-operands": _MMA,
    "small-tile": _MMA,
    "padded-tile": _MMA,
    "atomic-contention": _ATOMIC,
    "emulated-atomics": _ATOMIC,
    "ordered-atomics": _ATOMIC,
    "needless-atomics": _ATOMIC,
    "needless-split-k": _ATOMIC,
    "register-spills": Evidence("spilled registers are stored and loaded as local memory is", here=GLOBAL),
}
"""By rule. Samples say nothing of the others: when CTAs run, what a compilation or a configuration costs."""

_BY_EVENTS = ("wait_cycles", "exposed_cycles", "saved_cycles")
_SAID, _MOST_SAID = 0.01, 3
"""Reasons that are named: of more samples, and so many of them."""


def witnessed(finding: Finding, timelines: Sequence[Timeline]) -> Finding:
    """The finding with what samples say of it: of the last of these timelines that has some."""
    sampled = next((one for one in reversed(timelines) if one.samples is not None), None)
    if sampled is not None:
        return finding.model_copy(update={"witness": _witness(finding, sampled)})
    reasons = [one.no_samples for one in timelines if one.no_samples]
    if not reasons:
        return finding
    return finding.model_copy(update={"witness": Witness(agreement="none", message=f"no samples: {reasons[-1]}")})


def _witness(finding: Finding, timeline: Timeline) -> Witness:
    evidence, samples = EVIDENCE.get(finding.id), timeline.samples
    assert samples is not None
    if evidence is None:
        return Witness(agreement="none", message="samples say nothing of this")
    if not evidence.anywhere and not finding.source.line:
        return Witness(agreement="none", message="samples are by line, and it has none")
    if samples.total < LEAST_SAMPLES:
        return Witness(agreement="none", message=f"the GPU took {samples.total} samples, too few to say")
    shares = {reason: count / samples.total for reason, count in _counted(evidence, finding, samples).most_common()}
    places = [(one.warp_group, one.source) for one in timeline.regions if one.source is not None]
    groups = {group for group, source in places if _at_its_line(finding, source.file, source.line)}
    share = min(sum(shares.values()) / warps_of(timeline, groups), 1.0)
    by_events = _share_by_events(finding, timeline)
    least = WITNESSED[finding.severity] if by_events is None else by_events * HALF
    agrees = share >= least
    where = "" if evidence.anywhere else " at this line"
    words = [f"{part:.0%} {STALLS.get(reason, reason)} ({reason})" for reason, part in shares.items() if part >= _SAID]
    message = f"{share:.0%} of the samples show it{where}" + (f": {', '.join(words[:_MOST_SAID])}" if words else "")
    if by_events is not None:
        message += f"; by events it is {by_events:.0%}"
    return Witness(
        agreement="agrees" if agrees else "disagrees",
        share=share,
        by_events=by_events,
        decides=by_events is not None and (timeline.is_disturbed or _is_decided(finding, timeline)),
        stalls=shares,
        message=message,
    )


def _counted(evidence: Evidence, finding: Finding, samples: PcSamples) -> Counter[str]:
    """Samples that show a fault, by what the warps wait for.

    What waits at the finding's line may wait for what that line loads: of both counts the greater is taken.
    """
    counts: Counter[str] = Counter()
    for one in samples.lines:
        counts.update({reason: count for reason, count in one.stalls.items() if reason in evidence.anywhere})
        if _at_its_line(finding, one.file, one.line):
            for reason in evidence.here | evidence.awaited:
                here = one.stalls.get(reason, 0) if reason in evidence.here else 0
                awaited = one.awaited.get(reason, 0) if reason in evidence.awaited else 0
                counts[reason] += max(here, awaited)
    return +counts


def _at_its_line(finding: Finding, file: str, line: int) -> bool:
    return line == finding.source.line and is_same_file(file, finding.source.file)


def _is_decided(finding: Finding, timeline: Timeline) -> bool:
    """Whether it is about the timeline's waits for loads, and samples say their share."""
    wait = timeline.load_wait
    return "wait_cycles" in finding.evidence and wait is not None and wait.share_by_events is not None


def _share_by_events(finding: Finding, timeline: Timeline) -> float | None:
    """Share of an iteration that a finding is about, as events have it; None where it is about none."""
    if timeline.load_wait is not None and _is_decided(finding, timeline):
        return timeline.load_wait.share_by_events
    cycles = next((finding.evidence[name] for name in _BY_EVENTS if name in finding.evidence), None)
    whole = finding.evidence.get("iteration_cycles")
    return cycles / whole if isinstance(cycles, float | int) and isinstance(whole, float | int) and whole else None
