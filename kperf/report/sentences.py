"""Timelines in words: a verdict made from the numbers of one, and several side by side in a table."""

from collections.abc import Sequence

from rich.table import Table

from kperf.console import titled_table
from kperf.trace.analyze import facts
from kperf.trace.analyze.facts import CLOSE, EXPLAINED, what_to_do
from kperf.trace.analyze.models import (
    MOST_DISTURBED,
    Apart,
    Imbalance,
    Joined,
    LoadWait,
    Memory,
    Pass,
    PcSamples,
    Quantiles,
    Replayed,
    SampledCtas,
    SmUse,
    Timeline,
    WhatIf,
)
from kperf.trace.analyze.stalls import STALLS
from kperf.trace.instrument.session import CYCLES_AN_EVENT

LOADS_ON_THE_PATH = 0.15
"""Of an iteration, spent where loads are waited for: two waits that end at once take 5 to 10 % of a short one."""
MUCH_OF_COPY = 0.5
"""Of a copy's rate, from which on a kernel with MMAs has its bytes in its reading."""
READ_AGAIN = 1.5
"""Requested over different bytes of an argument: from there on it is reported how often it is read."""
MUCH_SLOWER = MOST_DISTURBED
"""Instrumented over original: from there on it is reported where the time goes."""
_MOST_STALLS = 3
_MANY_LOST = 0.05
"""Of the samples: fewer change no share that is printed."""
_AWAITED = 0.25
"""Of an iteration: how much longer MMAs may be in flight than they take before a reader has to know why."""
LONG_TAIL = 0.1
"""Of a launch, in which half of the SMs have ended: from there on it is reported."""


MOST_WHAT_IFS = 6
"""Rows of the table."""


def table(timelines: Sequence[Timeline], stamp: str) -> Table:
    """Side by side: iteration time, tensor cores, regions, bubbles, overhead."""
    title = f"inside the kernel, cycles of an iteration (median; p5 to p95): {stamp}"
    result = titled_table(title, "", *(timeline.label for timeline in timelines), left={""})

    def row(name: str, cells: Sequence[str]) -> None:
        result.add_row(name, *cells)

    row("iteration, least disturbed launch", [_least_disturbed(t) for t in timelines])
    row("iteration, drawn", [_range(t.cycles_per_unit) for t in timelines])
    if any(t.tile_boundary_cycles for t in timelines):
        beyond = [t.tile_boundary_cycles for t in timelines]
        row("from tile to tile, beyond an iteration", [_range(b) if b else "-" for b in beyond])
    row("SM clock, MHz (measured)", [_clock(t) for t in timelines])
    uses = [t.compute_use for t in timelines]
    row("unit of compute", [_unit(t) for t in timelines])
    row("its use: of the SM", [f"{use.sm:.1%}" if use and use.sm is not None else "-" for use in uses])
    row("its use: of a CTA's main loop", [f"{use.cta_main_loop:.1%}" if use else "-" for use in uses])
    row("time with an MMA of a CTA in flight", [f"{use.in_flight_cta:.1%}" if use else "-" for use in uses])
    row("CTAs on an SM, original, instrumented", [_resident(t) for t in timelines])
    row("confidence", [t.confidence.level for t in timelines])
    hidden = [t.arithmetic for t in timelines]
    row(
        "arithmetic, of it under own / any MMAs",
        [f"{h.cycles:.0f}, {h.under_own_mmas:.0f} / {h.under_any_mmas:.0f}" if h else "-" for h in hidden],
    )
    result.add_section()
    for group, name in dict.fromkeys((r.warp_group, r.name) for t in timelines for r in t.regions):
        regions = [[r for r in t.regions if (r.warp_group, r.name) == (group, name)] for t in timelines]
        row(f"{group}: {name}", [f"{_range(r[0].cycles)}  {r[0].share:5.1%}" if r else "-" for r in regions])
    result.add_section()
    for cause in dict.fromkeys(b.cause for t in timelines for b in t.bubbles):
        cells = [next((f"{b.cycles:.0f}" for b in t.bubbles if b.cause == cause), "-") for t in timelines]
        row(f"bubble: {cause}", cells)
    result.add_section()
    for place in range(max(min(MOST_WHAT_IFS, max(len(t.what_if) for t in timelines)), 1)):
        best = [t.what_if[place : place + 1] for t in timelines]
        row(
            "what-if saving: cycles without" if not place else "",
            [f"{_named(b[0])} {_saved(b[0])}" if b else "-" for b in best],
        )
    row("what-if savings not given", [str(len(t.withheld)) if t.withheld else "-" for t in timelines])
    explained = [f"{t.replay.cycles:.0f} ({t.replay.error:+.1%})" if t.replay else "-" for t in timelines]
    row("iteration by replay", explained)
    result.add_section()
    row(
        "launch",
        [str(t.overhead) for t in timelines],
    )
    row("events written, lost", [f"{t.events.written}, {t.events.lost}" for t in timelines])
    row("SASS order, original and instrumented", ["the same" if t.sass_order.same else "differs" for t in timelines])
    return result


def _clock(t: Timeline) -> str:
    """The measured clock, with a flag where the GPU cannot have run at it."""
    return f"{t.clock_mhz:.0f}{'' if t.clock_is_plausible else ', too high: short launch'}"


def _unit(t: Timeline) -> str:
    by = f" ({t.bound.instruction})" if t.bound and t.bound.instruction else ""
    return f"{t.unit_of_compute}{by}"


def _resident(t: Timeline) -> str:
    return ", ".join("-" if n is None else str(n) for n in (t.residency.original, t.residency.instrumented))


def _range(cycles: Quantiles) -> str:
    return f"{cycles.median:.0f} ({cycles.p5:.0f} to {cycles.p95:.0f})"


def verdict(t: Timeline) -> list[str]:
    """Sentences about one kernel, each made from the numbers: what its view shows, and how far it can be trusted."""
    lines = [f"{t.label}: {finding.message}; {finding.advice}." for finding in t.findings]
    if t.imbalance:
        lines += _imbalance(t, t.imbalance)
    lines += _pipeline(t) if t.unit == "iteration" else []
    if t.memory and t.unit == "CTA":
        lines += _memory(t, t.memory)
    elif t.memory and _moves_much(t, t.memory):
        lines += _moved(t, t.memory)
    if t.sms:
        lines += _tail(t, t.sms)
    if t.samples:
        lines += _of_samples(t, t.samples)
    return lines + _trust(t)


def _pipeline(t: Timeline) -> list[str]:
    assert t.iteration is not None
    line = f"{t.label}: an iteration takes {t.iteration.cycles:.0f} cycles"
    if t.bound:
        line += f"; its {_products(t)} need {t.bound.cycles:.0f} cycles on {_units(t)}"
        line += ": it is at its bound" if facts.at_bound(t) else ""
    lines = [f"{line}.", *_launches(t)]
    lines += [_in_flight(t), *_use(t)]
    if t.tile_boundary_cycles:
        lines.append(
            f"{t.label}: a CTA computes one tile after another; from a tile to the next it takes "
            f"{t.tile_boundary_cycles.median:.0f} cycles beyond those of the iterations, in which it computes the "
            f"{_products(t)} of one iteration more."
        )
    if t.load_wait:
        lines.append(_load_wait(t, t.load_wait))
    if (hidden := t.arithmetic) and hidden.cycles:
        lines.append(
            f"{t.label} hides {hidden.under_any_mmas:.0f} of {hidden.cycles:.0f} cycles of arithmetic under "
            f"{_products(t)}, {hidden.under_own_mmas:.0f} of them under its own warp group's."
        )
    if t.replay:
        lines += _what_ifs(t, t.replay)
    return lines


def _in_flight(t: Timeline) -> str:
    """How long no MMA is in flight; where MMAs are in flight much longer than they take, why: until the wait ends."""
    idle = sum(bubble.cycles for bubble in t.bubbles)
    if round(idle):
        line = f"{t.label}: {_one_of(t)} has no {_product(t)} in flight in {idle:.0f} of {_drawn(t)}"
        line += _mostly(t.bubbles[0].cause)
    else:
        line = f"{t.label}: {_one_of(t)} has {_a_product(t)} in flight in all of {_drawn(t)}"
    if t.bound is None:
        return f"{line}."
    ctas = (t.residency.original or 1) if t.bubbles_of == "SM" else 1
    needed = ctas * t.bound.cycles
    in_flight = t.cycles_per_unit.median - idle
    if in_flight - needed > _AWAITED * t.cycles_per_unit.median:
        these = f"of the {in_flight:.0f} cycles with {_a_product(t)} in flight" if round(idle) else "of these cycles"
        line += (
            f". {_a_product(t).replace('a', 'A', 1)} counts as in flight until the wait for it ends; {_products(t)} "
            f"compute in at least {needed:.0f} {these}"
        )
    return f"{line}."


def _mostly(cause: str) -> str:
    """What the warp groups mostly do while no MMA is in flight, if it is known."""
    if cause == "other":
        return ""
    many, _, where = cause.partition(" in ")
    if many in ("both", "all"):
        return f", mostly while {many} warp groups are in {where}"
    if " beside " in cause:
        return f", mostly while warp groups are in {' and in '.join(cause.split(' beside '))}"
    return f", mostly during {cause}"


def _launches(t: Timeline) -> list[str]:
    """From which launch the iteration time is, if there were several, and what the events of the drawn one cost."""
    assert t.iteration is not None
    if t.iteration.pass_number is None and t.iteration.least == t.iteration.most:
        return []
    count = len(t.passes) if t.joined else len(t.apart.passes) if t.apart else 0
    which = "the launch with all events"
    if t.iteration.pass_number is not None:
        which = f"pass {t.iteration.pass_number} of {count} with a few events each"
    line = f"{t.label}: that is {which}"
    if t.iteration.cost is not None:
        line += f", whose events cost {t.iteration.cost:+.1%} of the original kernel's time"
    line += f"; all launches show {t.iteration.least:.0f} to {t.iteration.most:.0f}"
    cost = facts.events_cost(t)
    if abs(cost) > CLOSE * t.iteration.cycles:
        line += f"; what is drawn has all events and takes {t.cycles_per_unit.median:.0f}"
        line += f": {cost:.0f} are the events' cost" if cost > 0 else ""
    return [f"{line}."]


def _drawn(t: Timeline) -> str:
    """The cycles of an iteration whose parts are known: of the launch that is drawn."""
    return f"the {t.cycles_per_unit.median:.0f} cycles of an iteration{' as drawn' if facts.events_cost(t) else ''}"


def _least_disturbed(t: Timeline) -> str:
    if t.iteration is None:
        return "-"
    return f"{t.iteration.cycles:.0f} ({t.iteration.least:.0f} to {t.iteration.most:.0f} in all launches)"


def _use(t: Timeline) -> list[str]:
    """How busy the SM's units are with all CTAs, and what one CTA's main loop asks of them."""
    use = t.compute_use
    if use is None:
        return []
    alone = f"inside its main loop, one CTA alone reaches {use.cta_main_loop:.0%} of"
    if use.sm is None:
        return [f"{t.label}: {alone} the peak rate of {_units(t)} of one SM{_shared(t)}."]
    whose = "original" if t.overhead.original_ms is not None else "instrumented"
    measured = f"{whose} kernel's {t.overhead.launch_ms:.3f} ms at {t.likely_clock_mhz:.0f} MHz"
    return [
        f"{t.label}: the {_products(t)} of all CTAs reach {use.sm:.0%} of the peak rate of {_units(t)} in the "
        f"{measured}; {alone} one SM's peak rate{_shared(t)}."
    ]


def _shared(t: Timeline) -> str:
    at_once = t.residency.original
    return f", and {at_once} CTAs share an SM" if at_once and at_once > 1 else ""


def _one_of(t: Timeline) -> str:
    """Who has no MMA in flight: all of an SM, or one CTA of it where the others were not recorded."""
    if t.bubbles_of == "SM":
        return "the SM"
    return "the SM" if t.residency.original == 1 else "one CTA"


def _units(t: Timeline) -> str:
    """What computes, by the kind of instruction."""
    if t.unit_of_compute == "fma":
        return "the FMA units"
    by = f" ({t.bound.instruction})" if t.bound and t.bound.instruction else ""
    return f"the tensor cores{by}"


def _product(t: Timeline) -> str:
    return "matrix product" if t.unit_of_compute == "fma" else "MMA"


def _a_product(t: Timeline) -> str:
    return "a matrix product" if t.unit_of_compute == "fma" else "an MMA"


def _products(t: Timeline) -> str:
    return f"{_product(t)}s"


def _load_wait(t: Timeline, wait: LoadWait) -> str:
    regions = [f"{name}{t.where(wait.warp_group, name)}" for name in wait.regions]
    where = f"{' and '.join(regions)} of {t.row(wait.warp_group)}"
    takes = "takes" if len(regions) == 1 else "take"
    spent = f"{where} {takes} {wait.cycles:.0f} ({wait.share:.0%}) of {_drawn(t)}"
    if wait.share < LOADS_ON_THE_PATH:
        return f"{t.label}: loads arrive in time: {spent}."
    cost = _most_that_loads_cost(t, wait)
    if cost < LOADS_ON_THE_PATH * t.cycles_per_unit.median:
        return f"{t.label}: loads lengthen an iteration by {cost:.0f} cycles at most, though {spent}."
    return f"{t.label}: loads are on the critical path: {spent}."


def _most_that_loads_cost(t: Timeline, wait: LoadWait) -> float:
    """Cycles: an iteration gets no shorter than its MMAs, nor by more than the loads' what-if saving, if it is known.

    A recorded region may hold more than the wait for a load, so that what is waited alone says too much.
    """
    bounds = [wait.cycles]
    if t.bound and t.iteration:
        bounds.append(max(t.iteration.cycles - t.bound.cycles, 0.0))
    if loads := _of_the_loaders(t, "load "):
        bounds.append(max(max(row.high, 0.0) for row in loads))
    return min(bounds)


def _of_the_loaders(t: Timeline, beginning: str) -> list[WhatIf]:
    """The savings of what warp groups do that only load; none where savings are not to be relied on."""
    if not t.replay or not _explains(t.replay) or t.confidence.level == "low":
        return []
    loaders = {role.warp_group for role in t.roles if role.duty == "loads"}
    rows = [*t.what_if, *t.withheld]
    return [row for row in rows if row.region.startswith(beginning) and row.warp_group in loaders]


def _what_ifs(t: Timeline, graph: Replayed) -> list[str]:
    together = f", of {graph.together} CTAs of an SM together," if graph.together > 1 else ""
    line = (
        f"{t.label}: by replay of the dependency graph{together} an iteration takes {graph.cycles:.0f} cycles; the "
        f"replayed CTAs took {graph.measured_cycles:.0f} ({graph.error:+.1%})"
    )
    if not _explains(graph):
        return [f"{line}: the graph does not explain them, and its what-if savings are not to be relied on."]
    lines = [f"{line}."]
    if best := t.what_if[:2]:
        alone = ""
        if graph.together > 1:
            alone = f"with the same change in all {graph.together} CTAs of an SM, "
        elif (t.residency.original or 1) > 1:
            alone = "of one CTA, beside which others keep the SM's units busy, "
        saved = [
            f"{_saved(row)} cycles less without {_named(row)}{t.where(row.warp_group, row.region)}" for row in best
        ]
        lines.append(f"{t.label}: {alone}an iteration would take {', '.join(saved)}.")
    elif t.withheld:
        lines.append(f"{t.label}: no what-if saving is given: {t.withheld[0].why}.")
    for condition, beginning in (("if no load took any time", "load "), ("if every stage were free at once", "wait ")):
        if rows := _of_the_loaders(t, beginning):
            row = max(rows, key=lambda row: row.high)
            less = _saved(row) if row in t.what_if else f"at most {max(row.high, 0.0):.0f}"
            lines.append(f"{t.label}: {condition}, an iteration would take {less} cycles less.")
    return lines


def _saved(row: WhatIf) -> str:
    """The likely saving and its interval; the most alone where the bound leaves no interval."""
    if round(row.low) >= round(row.high):
        return f"up to {row.high:.0f}"
    return f"{row.cycles:.0f} ({row.low:.0f} to {row.high:.0f})"


def _explains(graph: Replayed) -> bool:
    return abs(graph.error) <= EXPLAINED


def _named(row: WhatIf) -> str:
    everywhere = {"all": " in all warp groups", "tensor cores": " on the tensor cores"}
    return row.region + everywhere.get(row.warp_group, f" of {row.warp_group}")


def _moves_much(t: Timeline, m: Memory) -> bool:
    """Whether memory moves at least half of what it could: what a kernel with MMAs may wait for whatever its order."""
    return bool(t.bandwidth and m.unique_gb_per_s and m.unique_gb_per_s >= MUCH_OF_COPY * t.bandwidth.copy_gb_per_s)


def _moved(t: Timeline, m: Memory) -> list[str]:
    parts, verbs = [], []
    for verb, moved in (("loads", "loaded_bytes"), ("stores", "stored_bytes")):
        by_argument = [(part.argument, getattr(part, moved)) for part in m.traffic if getattr(part, moved)]
        if by_argument:
            verbs.append(verb)
            parts.append(f"{verb} " + ", ".join(f"{_bytes(size)} of {name}" for name, size in by_argument))
    lines = []
    if parts:
        whose = "instrumented" if t.overhead.original_ms is None else "original"
        line = f"{t.label}: {' and '.join(verbs)} request {m.gb_per_s:.0f} GB/s in the {whose} kernel's "
        line += f"{t.overhead.launch_ms:.3f} ms{'' if m.unique_gb_per_s else _of_peak(t, m.gb_per_s)}"
        line += f" (estimated from the {t.sampled.recorded} CTAs recorded)" if t.sampled and not t.all_ctas else ""
        line += f": {'; '.join(parts)}"
        lines += [f"{line}.", *_unique(t, m)]
    return lines


_DOING = {"first load": "waiting for the first load", "later loads": "waiting for later loads"}
"""What warps do, in words, where its name alone says too little."""


def _memory(t: Timeline, m: Memory) -> list[str]:
    lines = _moved(t, m)
    most = [f"{wait.share:.0%} {_DOING.get(wait.doing, wait.doing)}" for wait in m.waits if wait.share >= 0.05]
    lines.append(f"{t.label}: the median CTA runs for {t.cycles_per_unit.median:.0f} cycles: {', '.join(most)}.")
    if m.loads_in_flight_bytes:
        line = f"{t.label}: a CTA has {_bytes(m.loads_in_flight_bytes)} of loads in flight on average"
        if (at_once := t.residency.original) is not None:
            line += f", and while it waits up to {at_once - 1} other CTAs are on its SM"
            if t.residency.instrumented != at_once:
                line += f" ({_others(t.residency.instrumented)} in the instrumented kernel)"
        lines.append(f"{line}.")
    return lines


def _of_peak(t: Timeline, rate: float) -> str:
    if t.bandwidth is None:
        return ""
    copy, peak = t.bandwidth.copy_gb_per_s, t.bandwidth.peak_gb_per_s
    return f", {rate / copy:.0%} of a copy's {copy:.0f} GB/s and {rate / peak:.0%} of the peak of {peak:.0f} GB/s"


def _unique(t: Timeline, m: Memory) -> list[str]:
    """What memory has to move at least, and what is asked for more than once."""
    lines = []
    if m.unique_gb_per_s is not None:
        size = sum(part.unique_bytes or 0 for part in m.traffic)
        lines.append(
            f"{t.label}: counting each address once, device memory has to move at least {_bytes(size)}: "
            f"{m.unique_gb_per_s:.0f} GB/s{_of_peak(t, m.unique_gb_per_s)}."
        )
    for part in m.traffic:
        size = facts.size_of(t.arguments, part.argument) or 0
        times = part.loaded_bytes / size if size else 0.0
        if part.places > 1:
            lines.append(
                f"{t.label}: the kernel reads {part.argument} {_times(part.places)}: {part.places} of its loads have "
                "the same addresses."
            )
        elif times >= READ_AGAIN:
            lines.append(
                f"{t.label}: the kernel reads {part.argument} {_times(times)}: {part.argument} has {_bytes(size)}."
            )
    return lines


def _times(count: float) -> str:
    return "twice" if round(count, 1) == 2 else f"{count:.3g} times"


def _others(at_once: int | None) -> str:
    return "unknown" if at_once is None else str(at_once - 1)


def _imbalance(t: Timeline, i: Imbalance) -> list[str]:
    lines = []
    if i.early_share > 0:
        lines.append(
            f"{t.label}: {i.early_share:.1%} of {t.launch_ctas} CTAs return early; these take {i.early_time_share:.1%} "
            "of the time of all CTAs."
        )
    if i.iterations and i.iterations.least < i.iterations.most:
        lines.append(
            f"{t.label}: a CTA that does not return early makes {i.iterations.least} to {i.iterations.most} iterations "
            f"of the main loop; the median is {i.iterations.median:.0f}."
        )
    slowest = i.slowest
    line = (
        f"{t.label}: the slowest CTA, {slowest.program_id}, runs {slowest.us:.1f} us, "
        f"{slowest.us / i.cta_us.median:.1f} times the median"
    )
    if t.sms:
        end = slowest.start_us + slowest.us
        line += f", on SM {slowest.sm}, from {slowest.start_us:.1f} to {end:.1f} us "
        line += f"of the launch's {t.sms.span_us:.1f} us"
    return [*lines, f"{line}."]


def _tail(t: Timeline, s: SmUse) -> list[str]:
    """How the launch ends, where that takes a tenth of it or more."""
    tail = 1 - s.median_end_us / s.span_us
    if tail < LONG_TAIL:
        return []
    line = (
        f"{t.label}: half of the {s.sms} SMs have no CTA any more in the last {tail:.0%} of the launch, and the SMs "
        f"are idle {s.idle:.0%} of its time"
    )
    if not t.imbalance and t.launch_ctas > s.sms * s.most_resident:
        slots = s.sms * s.most_resident
        rest = t.launch_ctas % slots or slots
        line += f": {t.launch_ctas} CTAs are {t.launch_ctas / slots:.2f} waves of {slots}, and the last wave has {rest}"
    return [f"{line}."]


def _trust(t: Timeline) -> list[str]:
    lines = [_sampled(t, t.sampled)] if t.sampled else []
    why = f": {'; '.join(t.confidence.reasons)}" if t.confidence.reasons else ""
    do = f"; {what_to_do(t)}" if t.confidence.level == "low" else ""
    lines += [f"{t.label}: confidence is {t.confidence.level}{why}{do}.", *_cost(t)]
    if t.events.lost:
        lines.append(f"{t.label}: {t.events.lost} of {t.events.written} events were overwritten; the rest is shown.")
    if t.joined:
        lines += _joined(t, t.joined)
    if t.apart:
        lines.append(_apart(t, t.apart))
    if not t.sass_order.same:
        lines.append(
            f"{t.label}: events change the order of instructions; there the picture does not show the original kernel: "
            + "; ".join(t.sass_order.differences[: None if t.joined else 2])
            + "."
        )
    return lines


def _of_samples(t: Timeline, samples: PcSamples) -> list[str]:
    """What the GPU's samples say of the original kernel, and whether they decide shares."""
    most = [f"{share:.0%} {STALLS.get(reason, reason)} ({reason})" for reason, share in samples.stalls.items()]
    line = f"{t.label}: of {samples.total} samples of the original kernel {', '.join(most[:_MOST_STALLS])}"
    first = next((each for each in samples.lines if each.line), None)
    if first is not None:
        line += f"; {first.samples / samples.total:.0%} are at {first.file}:{first.line}"
    if samples.dropped > _MANY_LOST * samples.total:
        line += f"; the GPU lost {samples.dropped} more"
    lines = [f"{line}."]
    wait = t.load_wait
    if wait is not None and wait.share_by_events is not None:
        why = "events disturb the kernel" if t.is_disturbed else "events also count what warps do while they wait"
        lines.append(
            f"{t.label}: {why}, so samples decide how long it waits for loads: {wait.share:.0%} of an iteration, where "
            f"events show {wait.share_by_events:.0%}."
        )
    elif t.is_disturbed:
        lines.append(f"{t.label}: events disturb it, so shares of its lines are those of the samples.")
    return lines


def _sampled(t: Timeline, sampled: SampledCtas) -> str:
    """Whose cycles all are, and what a sample does not show."""
    if t.all_ctas:
        return (
            f"{t.label}: {_disturbed(t, t.all_ctas)}: cycles are of {sampled.recorded} sampled CTAs, every "
            f"{sampled.stride}th of {sampled.ctas} from CTA {sampled.first} on, and the launch with these "
            f"{t.overhead.cost}; how CTAs differ, how they fill the SMs, how the launch ends and the bytes are of the "
            "launch that recorded all."
        )
    return (
        f"{t.label}: {sampled.recorded} of {sampled.ctas} CTAs are recorded, every {sampled.stride}th from CTA "
        f"{sampled.first} on, and all cycles are theirs; the others run the original code. How CTAs differ, how they "
        "fill the SMs and how the launch ends is not known from a sample (--ctas all)."
    )


def _disturbed(t: Timeline, every: Pass) -> str:
    """What recording all CTAs does to the launch."""
    does = [every.overhead.cost]
    if t.resources and every.resources and every.resources.occupancy != t.resources.original.occupancy:
        does.append(f"leaves {every.resources.occupancy} CTAs an SM where {t.resources.original.occupancy} fit")
    if not every.sass_order.same:
        does.append("changes the order of instructions")
    *first, last = does
    return f"recording all CTAs {' and '.join([', '.join(first), last]) if first else last}"


def _of_unit(t: Timeline) -> str:
    return "an iteration's" if t.unit == "iteration" else "a CTA's"


def _cost(t: Timeline) -> list[str]:
    """Where the time goes that tracing takes, if that is much."""
    ratio = t.overhead.ratio
    if ratio is None or ratio < MUCH_SLOWER or t.joined:
        return []
    iteration_time = t.cycles_per_unit.median
    added = (1 - 1 / ratio) * iteration_time
    records = facts.events_of_a_unit(t)
    own = CYCLES_AN_EVENT * records
    line = (
        f"{t.label}: tracing makes it {ratio - 1:.0%} slower, about {added:.0f} cycles of {_of_unit(t)} "
        f"{iteration_time:.0f}, of which {records:.0f} events take some {min(own, added):.0f}"
    )
    rest = []
    if t.unit == "CTA":
        rest.append("what a CTA writes besides, a header and its events' way to device memory")
    if not t.sass_order.same:
        rest.append("the order of instructions that events change")
    if own < added:
        line += f"; the rest comes from {' and '.join(rest) or 'what they delay'}"
    return [f"{line}."]


def _joined(t: Timeline, joined: Joined) -> list[str]:
    """How several passes fit together, and what is not from them."""
    agree = len(t.passes) - len(joined.left_out)
    lines = [
        f"{t.label}: an iteration is joined from {agree} of {len(t.passes)} passes that agree: each one's intervals "
        f"add up to it within {joined.tolerance:.0%}."
    ]
    if joined.left_out:
        lines.append(f"{t.label}: {len(joined.left_out)} show another schedule and are left out: {joined.why[0]}.")
    if joined.original_cycles:
        lines.append(
            f"{t.label}: by the launches' times the original's iteration takes {joined.original_cycles:.0f} cycles."
        )
    savings = "" if joined.replayed else ", what-if savings"
    savings += ", times without an MMA in flight" if t.bubbles_of == "SM" else ""
    lines.append(
        f"{t.label}: single CTAs, tile boundaries{savings} and all outside of the main loop are from one launch with "
        f"all events ({joined.one_pass.overhead})."
    )
    return lines


def _apart(t: Timeline, apart: Apart) -> str:
    """What several passes showed that do not fit together."""
    costs = [record.overhead.ratio - 1 for record in apart.passes if record.overhead.ratio]
    line = f"{t.label}: what is drawn is one launch with all events, for {len(apart.passes)} passes do not agree"
    if costs:
        line += f"; they cost {min(costs):+.1%} to {max(costs):+.1%} of the original kernel's time"
    return f"{line}; {apart.why[0]}."


def _bytes(size: float) -> str:
    """In the unit that leaves one to three digits before the point."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} bytes"


def between(a: Timeline, b: Timeline) -> list[str]:
    """Sentences about two kernels that do the same work."""
    cycles = [t.iteration.cycles if t.iteration else t.cycles_per_unit.median for t in (a, b)]
    iteration_times = cycles[0] / cycles[1]
    times = a.overhead.launch_ms / b.overhead.launch_ms
    saved = cycles[0] - cycles[1]
    idle_a, idle_b = (sum(bubble.cycles for bubble in t.bubbles) for t in (a, b))
    idle = f"; bubbles go from {idle_a:.0f} to {idle_b:.0f}" if a.bubbles_of == b.bubbles_of else ""
    return [
        f"{b.label} saves {saved:.0f} cycles an iteration against {a.label}{idle}.",
        f"The iteration times differ by a factor of {iteration_times:.3f}, the original kernels' times by {times:.3f}: "
        f"{'they agree' if abs(iteration_times / times - 1) <= 0.05 else 'they do not agree'} within 5 %.",
    ]
