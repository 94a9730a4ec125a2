"""What follows from the numbers of a timeline: CTAs on an SM, use of its units, and how far the reading can be trusted.

All of it is computed from what a record keeps, so that records of an earlier version are judged as those of now.
"""

from kperf.trace.analyze.models import Confidence, KernelResources, Residency, Timeline

EXPLAINED = 0.05
"""Of the measured iteration time: a replay that is further off explains nothing."""
CLOSE = 0.02
"""Of an iteration time or a launch's time: what differs by less is the same."""

_MEDIUM_COST, _LOW_COST = 0.05, 0.15
"""Of the original kernel's time: what events may take, or win, for a high and for a medium confidence."""
_MUCH_ELSE = 0.5
"""Share by which the CTAs on an SM differ for a low confidence."""
_COUNTER_BYTES = 16
"""Of stack a thread, which the counters of events may take."""

_LEVELS = ("high", "medium", "low")
Reason = tuple[int, str]
"""Which of _LEVELS it leaves at most, and why."""

WHAT_TO_DO = "trace fewer regions (--regions), or over several passes, for a reading of higher confidence"


def residency(t: Timeline) -> Residency:
    """CTAs on an SM at once, of the original and of the instrumented kernel: those that fit, if there are as many."""
    if t.resources is None:
        return Residency(original=t.blocks_per_sm, instrumented=None)
    there_are = -(-t.blocks // t.sms.sms) if t.sms else None

    def at_once(of: KernelResources) -> int:
        return of.occupancy if there_are is None else min(of.occupancy, there_are)

    return Residency(original=at_once(t.resources.plain), instrumented=at_once(t.resources.twin))


def use_of_sm(t: Timeline, unit_cycles: float | None) -> float | None:
    """The share of their peak rate that the units of the SMs in use reach in the launch of the original kernel.

    `unit_cycles`: that all matrix products of the launch take at the peak rate of one SM.
    """
    if unit_cycles is None or t.sms is None:
        return None
    return unit_cycles / (t.sms.sms * t.overhead.launch_ms * t.likely_clock_mhz * 1e3)


def confidence(t: Timeline) -> Confidence:
    """High unless something speaks against it; the worst reason decides."""
    reasons = [*_of_cost(t), *_of_resources(t), *_of_schedule(t), *_of_events(t)]
    reasons.sort(key=lambda reason: -reason[0])
    level = max((level for level, _ in reasons), default=0)
    return Confidence(level=_LEVELS[level], reasons=[why for _, why in reasons])


def _of_cost(t: Timeline) -> list[Reason]:
    ratio = t.overhead.ratio
    if ratio is None:
        return [(1, "what events cost is unknown: the script launches the kernel once")]
    cost = round(abs(ratio - 1), 4)
    if cost <= _MEDIUM_COST:
        return []
    return [(2 if cost > _LOW_COST else 1, f"events make the launch {cost:.0%} {'slower' if ratio > 1 else 'faster'}")]


def _of_resources(t: Timeline) -> list[Reason]:
    reasons: list[Reason] = []
    original, instrumented = t.residency.original, t.residency.instrumented
    if original and instrumented and original != instrumented:
        much = abs(instrumented - original) / original >= _MUCH_ELSE
        why = f"the instrumented kernel has {instrumented} CTAs on an SM where the original has {original}"
        reasons.append((2 if much else 1, why))
    if t.resources and (more := t.resources.twin.spilled_bytes - t.resources.plain.spilled_bytes) > _COUNTER_BYTES:
        reasons.append((1, f"events make it spill {more} bytes a thread more"))
    return reasons


def _of_schedule(t: Timeline) -> list[Reason]:
    reasons: list[Reason] = []
    if not t.sass_order.same:
        reasons.append((1, "events change the order of instructions"))
    if t.graph and abs(t.graph.error) > EXPLAINED:
        reasons.append((1, f"the replay of the dependency graph is {t.graph.error:+.0%} off the iteration time"))
    return reasons


def _of_events(t: Timeline) -> list[Reason]:
    reasons: list[Reason] = []
    if t.records.lost:
        reasons.append((1, f"{t.records.lost} of {t.records.written} events were overwritten"))
    if not t.clock_is_plausible:
        why = f"the measured clock of {t.clock_mhz:.0f} MHz is above the GPU's {t.environment.max_sm_mhz} MHz"
        reasons.append((1, f"{why}: the launch is too short for the global timer"))
    return reasons
