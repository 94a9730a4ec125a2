"""Findings on a timeline: which line, and how much an iteration could save."""

import math
from collections.abc import Sequence

from kperf.arch import H200
from kperf.diagnose.reading.lines import source_of
from kperf.diagnose.thresholds import ISSUE_BOUND, READY_BOUND
from kperf.ir.locations import Frame
from kperf.trace.analyze.finding import Estimate, Finding, Level
from kperf.trace.analyze.models import RegionTime, Timeline
from kperf.trace.analyze.stalls import ISSUABLE, LEAST_SAMPLES


def finding(
    rule: str,
    timeline: Timeline,
    region: RegionTime | None,
    severity: Level,
    message: str,
    advice: str,
    evidence: dict[str, float | int | str],
    estimate: tuple[float, float, float] | None = None,
    candidates: Sequence[dict[str, int]] = (),
) -> Finding:
    """A finding at a region's line, or at the kernel; as sure as the timeline is."""
    file, _, line = timeline.file.rpartition(":")
    frame = Frame(file, int(line)) if line.isdecimal() else Frame(timeline.file, 1)
    if region is not None and region.source is not None:
        frame = Frame(region.source.file, region.source.line)
    return Finding(
        id=rule,
        severity=severity,
        confidence=timeline.confidence.level,
        source=source_of(frame),
        kernel=timeline.kernel,
        message=message,
        evidence={name: round(value, 4) if isinstance(value, float) else value for name, value in evidence.items()},
        advice=advice,
        estimate=None if estimate is None else Estimate(speedup=estimate[0], low=estimate[1], high=estimate[2]),
        candidates=list(candidates),
    )


def region_of(timeline: Timeline, warp_group: str, names: list[str]) -> RegionTime | None:
    """The longest of these regions of a warp group."""
    mine = [one for one in timeline.regions if one.warp_group == warp_group and one.name in names]
    return max(mine, key=lambda one: one.per_iteration or one.cycles.median, default=None)


def saved(timeline: Timeline, cycles: float) -> tuple[float, float, float]:
    """(speed-up, low, high) of an iteration that waits for so many cycles, and is no shorter than its bounds.

    These are the MMAs of all CTAs of the SM, and its part of the launch if that moves its bytes as fast as a copy.

    Low: it saves none of them; high: all, and a quarter more, as events disturb. The likely factor is the middle of
    none and all, sqrt(all): behind a wait that is gone stands the next one, as of memory's throughput behind latency.
    """
    iteration_time = timeline.cycles_per_unit.median
    has_bytes = timeline.memory is not None and timeline.memory.unique_gb_per_s is not None
    moving = share_of_copy(timeline) * iteration_time if has_bytes else 0.0
    least = min(max(_mma_cycles_of_sm(timeline), moving, iteration_time * 0.05), iteration_time)
    without_all = iteration_time / max(iteration_time - cycles, least)
    return math.sqrt(without_all), 1.0, iteration_time / max(iteration_time - cycles * 1.25, least)


def _mma_cycles_of_sm(timeline: Timeline) -> float:
    """Cycles of an SM's tensor cores for an iteration of each CTA that it holds: they share them."""
    return _resident(timeline) * timeline.bound.cycles if timeline.bound is not None else 0.0


def memory_cycles_of_sm(timeline: Timeline) -> float:
    """Cycles in which device memory moves an iteration's bytes of each CTA on the SM, at an SM's part of a copy's rate.

    A launch is slower where its last wave leaves SMs without CTAs. 0 where the bytes or the rate are not known.
    """
    if timeline.memory is None or timeline.bandwidth is None or timeline.unit != "iteration":
        return 0.0
    of_launch = sum(part.unique_bytes or 0 for part in timeline.memory.traffic)
    iterations = timeline.launch_ctas * timeline.units / timeline.ctas
    sms = timeline.sms.sms if timeline.sms is not None else H200.sms
    bytes_per_cycle = timeline.bandwidth.copy_gb_per_s * 1e3 / timeline.likely_clock_mhz / sms
    return _resident(timeline) * of_launch / iterations / bytes_per_cycle


def _resident(timeline: Timeline) -> int:
    """CTAs that an SM holds at once, of the original kernel; 1 where that is not known."""
    return timeline.residency.original or 1


def moved_gb_per_s(timeline: Timeline) -> float:
    """Bytes a second that come from device memory, at least; 0 where they are not known.

    Where it is not known which bytes are requested twice, all of them count.
    """
    if timeline.memory is None:
        return 0.0
    unique = timeline.memory.unique_gb_per_s
    return timeline.memory.gb_per_s if unique is None else unique


def share_of_copy(timeline: Timeline) -> float:
    """Of the rate of a copy on the same GPU; 0 where one of the two is not known."""
    return moved_gb_per_s(timeline) / timeline.bandwidth.copy_gb_per_s if timeline.bandwidth is not None else 0.0


def by_instructions(timeline: Timeline) -> tuple[str, dict[str, float]]:
    """How samples show that instructions bound a launch, in words and numbers; no words where they do not.

    Schedulers issue in most of the samples; or, as a unit takes several cycles an instruction, most of the warps issue,
    or are ready for a scheduler or a unit that is not free.
    """
    samples = timeline.samples
    if samples is None or samples.total < LEAST_SAMPLES:
        return "", {}
    issuing = 1 - sum(line.not_issued for line in samples.lines) / samples.total
    ready = sum(share for reason, share in samples.stalls.items() if reason in ISSUABLE)
    words = ""
    if issuing >= ISSUE_BOUND:
        words = f"schedulers issue an instruction in {issuing:.0%} of the samples"
    elif ready >= READY_BOUND:
        words = f"{ready:.0%} of the sampled warps issue, or are ready and wait for a scheduler or an arithmetic unit"
    return words, {"issuing": issuing, "ready": ready}
