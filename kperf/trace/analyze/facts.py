"""What follows from the numbers of a timeline: CTAs on an SM, use of its units, and how far the reading can be trusted.

All of it is computed from what a record keeps, so that records of an earlier version are judged as those of now.
"""

import math
import re
from collections.abc import Mapping

from kperf.trace.analyze.finding import LEVELS, Estimate, Finding, Source
from kperf.trace.analyze.models import (
    Confidence,
    IterationTime,
    KernelResources,
    Memory,
    Overhead,
    Recorded,
    Residency,
    Timeline,
    WhatIf,
    WithheldWhatIf,
)
from kperf.trace.capture.sampled import UNDISTURBED
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import COUNTER_BYTES, CYCLES_AN_EVENT

EXPLAINED = 0.05
"""Of the measured iteration time: a replay that is further off explains nothing."""
CLOSE = 0.02
"""Of an iteration time or a launch's time: what differs by less is the same."""

_MEDIUM_COST, _LOW_COST = UNDISTURBED, 0.15
"""Of the original kernel's time: what events may take, or win, for a high and for a medium confidence."""
_MUCH_DRAWN = 0.1
"""Share by which an iteration that is drawn may differ from the least disturbed one for a medium confidence."""
_MUCH_ELSE = 0.5
"""Share by which the CTAs on an SM differ for a low confidence."""
FASTER = 0.02
"""Of the original kernel's time: what a launch with events wins beyond noise."""
_MEDIUM_GAIN, _HIGH_GAIN = 1.1, 1.5
"""Times as fast, for a finding of medium and of high severity."""
_WGMMA_WAIT = "wait for wgmma"

_OF_CYCLES = (
    "regions", "cycles_per_unit", "iteration", "tile_boundary_cycles", "clock_mhz", "arithmetic", "bubbles", "replay",
    "what_if", "windows", "load_wait", "events", "confidence", "overhead", "mma_use.cta_main_loop",
    "mma_use.in_flight_cta", "fma_use.cta_main_loop", "fma_use.in_flight_cta", "memory.waits",
    "memory.loads_in_flight_bytes",
)  # fmt: skip
"""What a CTA does and takes, and how far that is disturbed."""
_OF_LAUNCH = (
    "view", "sms", "imbalance", "findings", "mma_use.sm_recorded", "mma_use.in_flight_sm", "fma_use.sm_recorded",
    "fma_use.in_flight_sm", "memory.traffic",
)  # fmt: skip
"""What all CTAs of a launch do."""
_OF_TIME = ("mma_use.sm", "fma_use.sm", "memory.gb_per_s", "memory.unique_gb_per_s", "residency.original")
"""What rests on the original kernel, where its time is known."""

Reason = tuple[int, str]
"""Which of `LEVELS` it leaves at most, and why."""


def what_to_do(t: Timeline) -> str:
    """What a reading of low confidence asks for. A sample disturbs least, where a launch has CTAs enough for one."""
    could_sample = t.sampled is None and not t.why_all and Sample.of(t.ctas).is_enough(t.ctas)
    sample = "record a sample of the CTAs (--ctas sampled), " if could_sample else ""
    return f"{sample}trace fewer regions (--regions), or over several passes, for a reading of higher confidence"


def concluded(t: Timeline, unit_cycles: float | None) -> Timeline:
    """The timeline with what follows from its numbers: CTAs on an SM, use of its units, confidence, findings.

    `unit_cycles`: that all MMAs of the launch take at the peak rate of one SM; None if not known.
    """
    t = t.model_copy(update={"residency": residency(t), "memory": memory(t)})
    t = t.model_copy(update={"iteration": iteration(t)})
    for name, use in (("mma_use", t.mma_use), ("fma_use", t.fma_use)):
        if use and t.iteration and t.bound:
            of_sm = use_of_sm(t, unit_cycles) if use.sm is None else use.sm
            changed = {"sm": of_sm, "cta_main_loop": t.bound.cycles / t.iteration.cycles}
            t = t.model_copy(update={name: use.model_copy(update=changed)})
    t = t.model_copy(update={"confidence": confidence(t), "findings": findings(t)})
    likely, withheld = what_ifs(t)
    t = t.model_copy(update={"what_if": likely, "withheld": withheld})
    return t.model_copy(update={"recorded_by": recorded_by(t)})


def recorded_by(t: Timeline) -> dict[str, Recorded]:
    """What each fact was read from that the timeline has, by the name of its field."""
    of_cta: Recorded = "sampled CTAs" if t.sampled else "all CTAs"
    of_launch: Recorded = "all CTAs" if t.all_ctas else of_cta
    of_time: Recorded = of_launch if t.overhead.original_ms is None else "original kernel"
    groups = ((_OF_CYCLES, of_cta), (_OF_LAUNCH, of_launch), (_OF_TIME, of_time))
    return {name: source for names, source in groups for name in names if _has(t, name)}


def _has(t: Timeline, name: str) -> bool:
    """Whether a timeline has a field, or a field's field, that is neither None nor empty."""
    value: object = t
    for part in name.split("."):
        value = getattr(value, part, None)
    return value is not None and value != []


def residency(t: Timeline) -> Residency:
    """CTAs on an SM at once, of the original and of the instrumented kernel: those that fit, if there are as many."""
    if t.resources is None:
        return Residency(original=t.ctas_per_sm, instrumented=None)
    there_are = -(-t.launch_ctas // t.sms.sms) if t.sms else None

    def at_once(of: KernelResources) -> int:
        return of.occupancy if there_are is None else min(of.occupancy, there_are)

    return Residency(original=at_once(t.resources.original), instrumented=at_once(t.resources.instrumented))


def use_of_sm(t: Timeline, unit_cycles: float | None) -> float | None:
    """The share of their peak rate that the units of the SMs in use reach in the launch of the original kernel.

    `unit_cycles`: that all MMAs of the launch take at the peak rate of one SM.
    """
    if unit_cycles is None or t.sms is None:
        return None
    return unit_cycles / (t.sms.sms * t.overhead.launch_ms * t.likely_clock_mhz * 1e3)


_BYTES = {"float8": 1, "float16": 2, "bfloat16": 2, "float32": 4, "float64": 8, "bool": 1, "int8": 1, "uint8": 1}
_BYTES |= {f"{sign}int{bits}": bits // 8 for sign in ("", "u") for bits in (16, 32, 64)}


def size_of(arguments: Mapping[str, str], name: str) -> int | None:
    """Bytes of the tensors that a name of traffic stands for, as in `a` or `a+b`; None where one is not known."""
    sizes = {}
    for argument, words in arguments.items():
        if tensor := re.fullmatch(r"([a-z]+\d*)\w* \[([\d, ]*)\]", words):
            lengths = [int(length) for length in tensor[2].split(",") if length.strip()]
            if tensor[1] in _BYTES:
                sizes[re.sub(r"_(ptrs?|desc)$", "", argument)] = math.prod(lengths) * _BYTES[tensor[1]]
    wanted = name.split("+")
    return sum(sizes[part] for part in wanted) if all(part in sizes for part in wanted) else None


def memory(t: Timeline) -> Memory | None:
    """With the bytes that device memory has to move at least: each address once, loads and stores apart."""
    if t.memory is None:
        return None
    traffic = []
    for part in t.memory.traffic:
        size = size_of(t.arguments, part.argument)
        moved = (part.loaded_bytes // part.places, part.stored_bytes)
        unique = None if size is None else sum(min(each, size) for each in moved)
        traffic.append(part.model_copy(update={"unique_bytes": unique}))
    known = [part.unique_bytes for part in traffic if part.unique_bytes is not None]
    rate = sum(known) / t.overhead.launch_ms / 1e6 if known else None
    return t.memory.model_copy(update={"traffic": traffic, "unique_gb_per_s": rate})


def iteration(t: Timeline) -> IterationTime | None:
    """The iteration time of the launch whose time is nearest to the original kernel's; None without iterations."""
    if t.unit != "iteration":
        return None
    passes = t.passes if t.joined else t.apart.passes if t.apart else []
    others = [
        (number, record.iteration_cycles, record.overhead)
        for number, record in enumerate(passes, 1)
        if record.iteration_cycles is not None
    ]
    number: int | None = None
    cycles, overhead = t.cycles_per_unit.median, t.overhead
    if t.joined:
        number, overhead = t.joined.iteration_pass + 1, passes[t.joined.iteration_pass].overhead
    else:
        number, cycles, overhead = min([(number, cycles, overhead), *others], key=lambda launch: changes(launch[2]))
    all_cycles = [t.cycles_per_unit.median, *(own for _, own, _ in others)]
    cost = None if overhead.ratio is None else overhead.ratio - 1
    return IterationTime(cycles=cycles, pass_number=number, cost=cost, least=min(all_cycles), most=max(all_cycles))


def changes(overhead: Overhead) -> float:
    """By what share events change a launch's time, either way; infinite where that is not known."""
    return float("inf") if overhead.ratio is None else abs(overhead.ratio - 1)


def events_cost(t: Timeline) -> float:
    """Cycles by which an iteration that is drawn takes longer than that of the launch which events change least."""
    return t.cycles_per_unit.median - t.iteration.cycles if t.iteration else 0.0


def events_of_a_unit(t: Timeline) -> float:
    """Events that a warp group writes in an iteration or a CTA, on average."""
    return t.events.written / t.units / len(t.roles)


def own_share(t: Timeline) -> float:
    """Share of an iteration's or a CTA's cycles that its own events take, estimated from what one costs its warp."""
    return CYCLES_AN_EVENT * events_of_a_unit(t) / t.cycles_per_unit.median


def at_bound(t: Timeline) -> bool:
    """Whether an iteration takes no longer than its MMAs at the peak rate."""
    return bool(t.iteration and t.bound and abs(t.iteration.cycles / t.bound.cycles - 1) <= CLOSE)


def what_ifs(t: Timeline) -> tuple[list[WhatIf], list[WithheldWhatIf]]:
    """Savings that may be reported, with all that is uncertain about them, and those that may not."""
    rows = [*t.what_if, *t.withheld]
    if t.replay is None or t.iteration is None:
        return rows, []
    unknown, most = _unknown_cycles(t), _above_the_bound(t)
    reported: list[WhatIf] = []
    withheld: list[WithheldWhatIf] = []
    for row in rows:
        cap = t.iteration.cycles if row.warp_group == "tensor cores" else most
        made = WhatIf(
            region=row.region,
            warp_group=row.warp_group,
            cycles=min(row.cycles, cap),
            low=min(row.assumed_low - unknown, cap),
            high=min(row.assumed_high + unknown, cap),
            assumed_low=row.assumed_low,
            assumed_high=row.assumed_high,
        )
        why = _why_withheld(t, made, unknown, cap)
        if why is None:
            reported.append(made)
        else:
            withheld.append(WithheldWhatIf(**dict(made), why=why))
    return sorted(reported, key=lambda row: -row.cycles), withheld


def _unknown_cycles(t: Timeline) -> float:
    """Of an iteration: what the replay is off, and what the events or the differences between passes may be."""
    assert t.replay is not None
    assert t.iteration is not None
    off = abs(t.replay.cycles - t.replay.measured_cycles)
    drawn = t.cycles_per_unit.median
    if t.iteration.most > t.iteration.least:
        disturbed = max(abs(events_cost(t)), (t.iteration.most - t.iteration.least) / 2)
    else:
        disturbed = drawn * (_MEDIUM_COST if t.iteration.cost is None else abs(t.iteration.cost))
    return off + disturbed


def _above_the_bound(t: Timeline) -> float:
    """Cycles of an iteration that something else than the MMAs of the SM's CTAs can take."""
    assert t.iteration is not None
    cycles = t.iteration.cycles
    if t.iteration.pass_number is None and t.replay:
        cycles = max(cycles, t.replay.measured_cycles)  # savings are of the mean iteration
    return max(cycles - (t.residency.original or 1) * t.bound.cycles, 0.0) if t.bound else cycles


def _why_withheld(t: Timeline, row: WhatIf, unknown: float, cap: float) -> str | None:
    assert t.iteration is not None
    assert t.replay is not None
    if abs(t.replay.error) > EXPLAINED:
        return "the replay does not explain the iteration time"
    if t.confidence.level == "low":
        return f"confidence is low: {t.confidence.reasons[0]}"
    if cap <= CLOSE * t.iteration.cycles:
        return "the iteration is at its bound"
    if row.low <= 0:
        return f"{unknown:.0f} cycles are uncertain, so that it may save nothing"
    return None


def findings(t: Timeline) -> list[Finding]:
    """What a launch that is faster with events shows: that the original can be as fast.

    A sample gives no finding: nearly all of its CTAs run the original's instructions, which other registers time
    otherwise. Beside it the launch that recorded all CTAs does.
    """
    launches = [(t.overhead, t.sass_order, "all events")] if t.joined is None and t.sampled is None else []
    launches += [(t.all_ctas.overhead, t.all_ctas.sass_order, "all events")] if t.all_ctas else []
    launches += [
        (record.overhead, record.sass_order, f"events at {'; '.join(record.regions)}")
        for record in (t.passes if t.joined else t.apart.passes if t.apart else [])
    ]
    known = [(overhead.ratio, order, where) for overhead, order, where in launches if overhead.ratio is not None]
    if not known:
        return []
    ratio, order, where = min(known, key=lambda launch: launch[0])
    if ratio > 1 - FASTER:
        return []
    gain = 1 / ratio
    message = f"with {where} the kernel is {1 - ratio:.1%} faster than the original"
    evidence: dict[str, float | int | str] = {"speedup": gain}
    waits = [sum(step.startswith(_WGMMA_WAIT) for step in steps) for steps in (order.original, order.instrumented)]
    if order.same:
        name, advice = "faster-in-another-step", "let warp groups begin in another step, as by an order between them"
        message += ", in the same order of instructions: its warp groups are in another step"
    elif waits[0] > waits[1]:
        name = "wgmma-serialised"
        advice = "find why the assembler waits after each wgmma (ptxas warns C75xx): an accumulator may be read "
        advice += "in between"
        message += ", because ptxas serialises the original's wgmma: the original's machine code waits for wgmma at "
        message += f"{waits[0]} places, and the machine code with events at {waits[1]}"
        evidence |= {"waits_original": float(waits[0]), "waits_instrumented": float(waits[1])}
    else:
        name, advice = "faster-in-another-order", "try what leads the assembler to that order, as other stages or tiles"
        message += f": its machine code has another order, {order.differences[0]}"
    return [
        Finding(
            id=name,
            severity="high" if gain >= _HIGH_GAIN else "medium" if gain >= _MEDIUM_GAIN else "low",
            confidence="medium" if order.same else "high",
            source=Source(file="", line=0),
            kernel=t.kernel,
            message=message,
            evidence=evidence,
            advice=advice,
            estimate=Estimate(speedup=gain, low=1.0, high=gain),
        )
    ]


def confidence(t: Timeline) -> Confidence:
    """High unless something speaks against it; the worst reason decides."""
    reasons = [*_of_cost(t), *_of_resources(t), *_of_schedule(t), *_of_events(t)]
    if t.why_all:
        reasons.append((0, f"all CTAs are recorded and not a sample: {t.why_all}"))
    reasons.sort(key=lambda reason: -reason[0])
    level = max((level for level, _ in reasons), default=0)
    return Confidence(level=LEVELS[level], reasons=[why for _, why in reasons])


def _of_cost(t: Timeline) -> list[Reason]:
    ratio = t.overhead.ratio
    if ratio is None:
        return [(1, "what events cost is unknown: the script launches the kernel once")]
    reasons: list[Reason] = []
    cost = round(abs(ratio - 1), 4)
    if cost > _MEDIUM_COST:
        why = f"events make the launch {cost:.0%} {'slower' if ratio > 1 else 'faster'}"
        reasons.append((2 if cost > _LOW_COST else 1, why))
    if t.sampled and (share := own_share(t)) > _MEDIUM_COST:
        reasons.append((1, f"events take about {share:.0%} of the time of the CTAs that are recorded"))
    return reasons


def _of_resources(t: Timeline) -> list[Reason]:
    reasons: list[Reason] = []
    original, instrumented = t.residency.original, t.residency.instrumented
    if original and instrumented and original != instrumented:
        much = abs(instrumented - original) / original >= _MUCH_ELSE
        why = f"the instrumented kernel has {instrumented} CTAs on an SM where the original has {original}"
        reasons.append((2 if much else 1, why))
    if (
        t.resources
        and (more := t.resources.instrumented.spilled_bytes - t.resources.original.spilled_bytes) > COUNTER_BYTES
    ):
        it = "the CTAs that are recorded" if t.sampled else "it"
        reasons.append((1, f"events make {it} spill {more} bytes a thread more"))
    return reasons


def _of_schedule(t: Timeline) -> list[Reason]:
    reasons: list[Reason] = []
    if t.iteration and abs(cost := events_cost(t)) > CLOSE * t.iteration.cycles:
        share = cost / t.iteration.cycles
        why = f"an iteration that is drawn takes {abs(share):.0%} {'more' if cost > 0 else 'less'} than with few events"
        reasons.append((2 if abs(share) > _MUCH_DRAWN else 1, why))
    if t.iteration and t.iteration.most - t.iteration.least > CLOSE * t.iteration.cycles:
        why = f"launches show iterations of {t.iteration.least:.0f} to {t.iteration.most:.0f} cycles"
        reasons.append((1, why))
    if not t.sass_order.same:
        where = " in the CTAs that are recorded" if t.sampled else ""
        reasons.append((1, f"events change the order of instructions{where}"))
    if t.replay and abs(t.replay.error) > EXPLAINED:
        reasons.append((1, f"the replay of the dependency graph is {t.replay.error:+.0%} off the iteration time"))
    return reasons


def _of_events(t: Timeline) -> list[Reason]:
    reasons: list[Reason] = []
    if t.events.lost:
        reasons.append((1, f"{t.events.lost} of {t.events.written} events were overwritten"))
    if not t.clock_is_plausible:
        why = f"the measured clock of {t.clock_mhz:.0f} MHz is above the GPU's {t.environment.max_sm_mhz} MHz"
        reasons.append((1, f"{why}: the launch is too short for the global timer"))
    return reasons
