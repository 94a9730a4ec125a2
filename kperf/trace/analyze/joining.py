"""Put several passes of one kernel together: each measured a few probes of an iteration, all of them the anchors.

In a pass a probe is measured from its iteration's anchor, on the SM's own clock, over the typical iterations of the
launch: those whose length is not among the longest or shortest twentieth. The means of two probes differ by the mean of
what lies between them, whether one pass measured both or two did; medians would not. What an event costs comes after
the clock that it keeps, so a probe of a pass of two stands where it would without its event, and the rest of the
iteration grows.

So each pass says by itself whether it can be joined: its own intervals add up to its own iteration, and that has to be
the iteration time of the pass that changes the kernel's time least. A pass that changed the schedule has another
iteration, or warp groups in another step: it is left out, and what only it measured is not told apart. Where less than
half of the passes agree, a probe lies out of the program's order, or different kinds of work would be one region, the
timeline stays that of one launch with all events; the iteration time is that of the least disturbed pass even so.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.analyze import analysis
from kperf.trace.analyze.facts import changes, concluded
from kperf.trace.analyze.models import (
    Apart,
    Joined,
    KernelResources,
    LoadWait,
    Overhead,
    Pass,
    Quantiles,
    RegionTime,
    Timeline,
    UnitUse,
)
from kperf.trace.analyze.read import decode_launch, sass_order
from kperf.trace.analyze.replay import Assumptions
from kperf.trace.analyze.timeline import Cta, Launch, Neighbours, Span, in_flight_mmas
from kperf.trace.analyze.whatif import Sms, what_if
from kperf.trace.capture.passes import ChosenPass
from kperf.trace.instrument.probes import ANCHOR, Body, BodyClass, ProbedKernel, Probes, between
from kperf.trace.instrument.program import Interval, IntervalKind
from kperf.trace.instrument.program import Part as WorkPart
from kperf.trace.instrument.session import Recording

TOLERANCE = 0.02
"""Of the iteration time: by how much a pass's may differ from it, and a probe lie before the one it follows."""

STEP = 0.1
"""Of the iteration time: by how much two warp groups may be in another step with each other than in its pass."""

ENOUGH = 0.5
"""Of the passes have to agree for an iteration to be joined from them."""

_ITERATIONS = 24
"""Of the joined CTA, all alike: what follows one CTA at a time needs some."""

_AHEAD = 4
"""Iterations more of a group that only loads: of some loads the first are used before the loop."""

_TRIMMED = 5
"""Percent of the iterations at either end."""


@dataclass(frozen=True)
class Captured:
    """A pass as it ran."""

    probed: ProbedKernel
    launch: Launch
    record: Pass

    @classmethod
    def of(
        cls, chosen: ChosenPass, buffer: NDArray[np.uint8], recording: Recording, probes: Probes, overhead: Overhead
    ) -> "Captured":
        """What a pass of `probes` wrote into its buffer. Raises `UsageError` as `decode_launch` does."""
        probed = chosen.probed
        record = Pass(
            regions=probes.named(probed.places),
            overhead=overhead,
            sass_order=sass_order(chosen.orders),
            resources=KernelResources(**asdict(chosen.built.resource_usage)),
            events_per_iteration=max(map(len, probed.places)),
        )
        return cls(probed, decode_launch(buffer, recording, probed.program), record)


@dataclass(frozen=True)
class MeasuredProbe:
    """Where a probe lies after its anchor: cycles in the mean, quantiles of them (0 to 100 %), and the pass."""

    cycles: float
    quantiles: NDArray[np.float64]
    number: int


@dataclass(frozen=True)
class Iterations:
    """The typical iterations of a warp group in one pass.

    `iteration_time`: mean cycles from anchor to anchor; `offsets`: place -> cycles after the anchor, of each iteration.
    """

    body: Body
    of: BodyClass
    iteration_time: float
    offsets: Mapping[int, NDArray[np.int64]]


@dataclass(frozen=True)
class Part:
    """An interval of the joined iteration of a warp group, in cycles after the anchor.

    `kinds`: of the intervals that it puts together.
    """

    interval: Interval
    kinds: frozenset[IntervalKind]
    start: float
    end: float
    quantiles: Quantiles
    passes: tuple[int, ...]

    @property
    def cycles(self) -> float:
        """How long it takes."""
        return self.end - self.start


def join(one_launch: Timeline, launch: Launch, all_probes: Probes, captured: Sequence[Captured]) -> Timeline:
    """The timeline of several passes, its verdict included; that of one launch if they do not make one iteration.

    `one_launch`, `launch`: of the launch with all events, from which stays what is outside of the main loop. Raises
    `UsageError` if a pass has no iteration to measure.
    """
    number = min(range(len(captured)), key=lambda n: changes(captured[n].record.overhead))
    iteration_time = analysis.iteration_time(captured[number].launch)
    groups = [group for group, main in captured[number].launch.main_scope.items() if main is not None]
    iterations = [
        {group: _iterations(captured_pass, all_probes, group) for group in groups} for captured_pass in captured
    ]
    lags = [_lags(captured_pass.launch, launch, iteration_time.median) for captured_pass in captured]
    passes = [
        _measured(captured_pass, of_groups) for captured_pass, of_groups in zip(captured, iterations, strict=True)
    ]
    others = {
        **_out_of_step(passes, lags, number, iteration_time.median),
        **_open(passes, number, iteration_time.median),
    }
    agreeing = [n for n in range(len(captured)) if n not in others]
    gaps = list(others.values())
    parts_of: dict[str, list[Part]] = {}
    if number in agreeing and len(agreeing) >= len(captured) * ENOUGH:
        gaps = []
        for group in groups:
            placed = _placed(iterations, group, captured, agreeing)
            gaps += _disorder(placed, iterations[number][group].of, group, iteration_time.median)
            parts_of[group] = list(_parts(all_probes, group, iterations[number][group], placed, iteration_time.median))
            gaps += _mixed(parts_of[group], group)
        gaps += others.values() if gaps else ()
    if gaps:
        alone = one_launch.model_copy(update={"apart": Apart(passes=passes, tolerance=TOLERANCE, why=gaps)})
        return concluded(alone, None)
    cta = _cta(parts_of, lags[number], captured[number].probed, iteration_time.median)
    ratio = passes[number].overhead.ratio
    joined = Joined(
        one_pass=one_launch.passes[0],
        iteration_pass=number,
        original_cycles=iteration_time.median / ratio if ratio else None,
        tolerance=TOLERANCE,
        left_out=sorted(others),
        why=list(others.values()),
    )
    return _timeline(one_launch, launch, all_probes, cta, parts_of, iteration_time, passes, joined)


def _iterations(captured: Captured, all_probes: Probes, group: str) -> Iterations:
    launch, probes = captured.launch, captured.probed.probes
    main = launch.main_scope[group]
    assert main is not None
    of, body = next(
        (of, body) for of in all_probes.classes for body in of.bodies if body.probes[ANCHOR] == probes.get((main, True))
    )
    places = [place for place, probe in enumerate(body.probes) if probe in probes.values()]
    events = launch.events
    of_group = np.flatnonzero(events.warp == launch.groups.index(group))
    anchors = np.flatnonzero(events.is_start[of_group] & (events.scope[of_group] == main))
    whole = np.diff(anchors) == len(places)
    first, following = of_group[anchors[:-1][whole]], of_group[anchors[1:][whole]]
    same = events.cta[first] == events.cta[following]
    first, following = first[same], following[same]
    iteration_times = events.cycle[following] - events.cycle[first]
    if not iteration_times.size:
        raise UsageError(f"{group} makes no two iterations in a row: trace a longer loop")
    low, high = np.percentile(iteration_times, [_TRIMMED, 100 - _TRIMMED])
    typical = (iteration_times >= low) & (iteration_times <= high)
    first = first[typical]
    offsets = {place: events.cycle[first + at] - events.cycle[first] for at, place in enumerate(places)}
    return Iterations(body, of, float(iteration_times[typical].mean()), offsets)


def _lags(launch: Launch, all_events: Launch, iteration_time: float) -> dict[str, float]:
    """By how many cycles the iterations of each group come after those of the first that issues MMAs.

    In the last tile of each CTA the last iteration but n against the last but n, in the median: of a circular buffer
    that is too small for a CTA the last iterations are there. `all_events`, with all events, tells how many iterations
    a group makes of a tile; one that makes more, as the others do their first before the loop, begins by these earlier.
    """
    reference, *_ = analysis.issuers(launch)
    ctas = launch.events.n_ctas
    tiles = 1 + all_events.boundaries(reference).size / ctas
    most = max(all_events.iterations(reference) / ctas / tiles, 1)
    of_reference, reference_cycles = _anchors(launch, reference)
    lags = {}
    for group in (name for name, main in launch.main_scope.items() if main is not None):
        of_group, group_cycles = _anchors(launch, group)
        both, a, b = np.intersect1d(of_reference, of_group, return_indices=True)
        last = (both & _COUNT) <= most
        earlier = round((all_events.iterations(group) - all_events.iterations(reference)) / ctas / tiles)
        lags[group] = float(np.median((group_cycles[b] - reference_cycles[a])[last])) - earlier * iteration_time
    return lags


_COUNT = 2**32 - 1


def _anchors(launch: Launch, group: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """A number for each anchor of a group, of its CTA and (in `_COUNT`) of how many come after it; and its cycle."""
    events = launch.events
    of_group = events.is_start & (events.warp == launch.groups.index(group))
    at = np.flatnonzero(of_group & (events.scope == launch.main_scope[group]))
    cta = events.cta[at].astype(np.int64)
    from_last = np.searchsorted(cta, cta, side="right") - np.arange(len(at))
    return cta << 32 | from_last, events.cycle[at]


def _placed(
    iterations: Sequence[Mapping[str, Iterations]], group: str, captured: Sequence[Captured], agreeing: Sequence[int]
) -> dict[int, MeasuredProbe]:
    """Place -> where it lies: of several passes that agree and measured it, in that which disturbs least."""
    order = sorted(
        agreeing, key=lambda n: (not captured[n].record.sass_order.same, changes(captured[n].record.overhead))
    )
    placed: dict[int, MeasuredProbe] = {}
    for number in order:
        for place, cycles in iterations[number][group].offsets.items():
            if place not in placed:
                quantiles = np.percentile(cycles, np.arange(101)).astype(np.float64)
                placed[place] = MeasuredProbe(float(cycles.mean()), quantiles, number)
    return placed


def _parts(
    all_probes: Probes, group: str, iterations: Iterations, placed: Mapping[int, MeasuredProbe], iteration_time: float
) -> Iterator[Part]:
    """The intervals of an iteration on one iteration time; the last reaches to the next anchor.

    Two between which no pass that agrees has a probe are one.
    """
    probes, places = iterations.body.probes, len(iterations.body.probes)
    end = MeasuredProbe(iteration_time, np.full(101, iteration_time), placed[ANCHOR].number)
    known = {**placed, places: end}
    at = [(n, known[iterations.of.same.get(n, n)]) for n in range(places) if iterations.of.same.get(n, n) in known]
    low = 0.0
    for (place, probe), (following_place, following) in pairwise([*at, (places, end)]):
        steps = pairwise([*probes, probes[ANCHOR]][place : following_place + 1])
        intervals = [between(all_probes.program, *step) for step in steps]
        start, low = low, min(max(low, following.cycles), iteration_time)
        # The length of which quantile goes with which is not known of two passes: the early iterations of one are taken
        # to be those of the other, which keeps the mean.
        p5, median, p95 = np.percentile(following.quantiles - probe.quantiles, [5, 50, 95])
        spread = Quantiles(median=float(median), p5=float(p5), p95=float(p95))
        kinds = frozenset(interval.kind for interval in intervals)
        passes = tuple(sorted({probe.number, following.number}))
        yield Part(_merged(group, intervals), kinds, start, low, spread, passes)


def _mixed(parts: Sequence[Part], group: str) -> list[str]:
    """Of parts in which different kinds of work are one: when MMAs were issued or ended, say, is not known."""
    return [
        f"the parts of {part.interval.name} of {group} are distinguished only by passes that are left out"
        for part in parts
        if len(part.kinds - {"other"}) > 1
    ]


def _merged(group: str, intervals: Sequence[Interval]) -> Interval:
    """One interval that does what these do, one after another."""
    first, *others = intervals
    if not others:
        return replace(first, group=group)
    working = [interval for interval in intervals if interval.kind != "other"] or list(intervals)
    return Interval(
        group,
        " + ".join(dict.fromkeys(interval.name for interval in working)),
        working[0].kind,
        **{
            name: tuple(item for interval in intervals for item in getattr(interval, name))
            for name in ("waits", "signals", "loads", "uses", "queue", "traffic")
        },
        parts=tuple(part for each in working for part in (each.parts or (WorkPart(each.name, each.kind),))),
    )


def _measured(captured: Captured, iterations: Mapping[str, Iterations]) -> Pass:
    issuers = analysis.issuers(captured.launch)
    cycles = float(np.mean([iterations[group].iteration_time for group in issuers]))
    return captured.record.model_copy(update={"iteration_cycles": cycles})


def _open(passes: Sequence[Pass], number: int, iteration_time: float) -> dict[int, str]:
    """Passes whose intervals add up to something else than those of the iteration time's pass, the furthest off first.

    At last that pass, if it has no typical iteration: the iteration time is the median, and intervals add up to the
    mean.
    """
    mean = passes[number].iteration_cycles or iteration_time
    off = {place: (record.iteration_cycles or 0.0) / mean - 1 for place, record in enumerate(passes)}
    reasons = {
        place: f"the intervals of {_called(place, record)} add up to {record.iteration_cycles:.0f} cycles, "
        f"{off[place]:+.1%} of the {mean:.0f} of pass {number + 1}"
        for place, record in sorted(enumerate(passes), key=lambda numbered: -abs(off[numbered[0]]))
        if abs(off[place]) > TOLERANCE
    }
    if abs(mean / iteration_time - 1) > TOLERANCE:
        reasons[number] = (
            f"iterations of {_called(number, passes[number])} differ too much: {mean:.0f} cycles in the mean, "
            f"{iteration_time:.0f} in the median"
        )
    return reasons


def _disorder(placed: Mapping[int, MeasuredProbe], of: BodyClass, group: str, iteration_time: float) -> list[str]:
    """Probes that lie before one which they follow."""
    measured = sorted(placed)
    return [
        f"{of.names[b]} of {group} lies {placed[a].cycles - placed[b].cycles:.0f} cycles before {of.names[a]}, which "
        f"it follows (passes {placed[b].number + 1} and {placed[a].number + 1})"
        for a, b in pairwise(measured)
        if placed[a].cycles - placed[b].cycles > TOLERANCE * iteration_time
    ]


def _out_of_step(
    passes: Sequence[Pass], lags: Sequence[Mapping[str, float]], number: int, iteration_time: float
) -> dict[int, str]:
    """Passes in which warp groups follow each other at another distance than in the iteration time's pass."""
    reasons: dict[int, str] = {}
    for place, (record, lags_of_pass) in enumerate(zip(passes, lags, strict=True)):
        for group, lag in lags_of_pass.items():
            apart = (lag - lags[number][group] + iteration_time / 2) % iteration_time - iteration_time / 2
            if abs(apart) > STEP * iteration_time:
                reasons.setdefault(
                    place,
                    f"in {_called(place, record)} {group} begins its iterations {abs(apart):.0f} cycles "
                    f"{'later' if apart > 0 else 'earlier'} than in pass {number + 1}",
                )
    return reasons


def _called(place: int, record: Pass) -> str:
    return f"pass {place + 1} ({'; '.join(record.regions)})"


def _cta(
    parts_of: Mapping[str, list[Part]], lags: Mapping[str, float], probed: ProbedKernel, iteration_time: float
) -> Cta:
    """A CTA of joined iterations, all alike, in which each group does before its loop what the program says."""
    spans: dict[str, list[Span]] = {}
    first = min(lags.values())
    for group, parts in parts_of.items():
        begin = lags[group] - first
        before = _prologue(probed, group)
        spans[group] = [Span(before, round(begin), round(begin), None)] if before else []
        issues = any(part.interval.issues for part in parts)
        for iteration in range(_ITERATIONS if issues else _ITERATIONS + _AHEAD):
            anchor = begin + iteration * iteration_time
            spans[group] += [
                Span(part.interval, round(anchor + part.start), round(anchor + part.end), iteration) for part in parts
            ]
    return Cta(
        0,
        0,
        0,
        spans,
        list(in_flight_mmas(spans, probed.program.cycles)),
    )


def _prologue(probed: ProbedKernel, group: str) -> Interval | None:
    """What a group does from its first event to its first iteration's: a part of its loads and waits is peeled off."""
    of_group = [scope for scope in probed.program.scopes if scope.group == probed.program.code(group)]
    scopes, looping = [s for s in of_group if not s.loop], [s.number for s in of_group if s.loop]
    ways = (
        probed.program.intervals.get(((scope.number, True), (first, True))) for scope in scopes for first in looping
    )
    return next((way for way in ways if way is not None), None)


def _timeline(
    one_launch: Timeline,
    launch: Launch,
    all_probes: Probes,
    cta: Cta,
    parts_of: Mapping[str, list[Part]],
    iteration_time: Quantiles,
    passes: list[Pass],
    joined: Joined,
) -> Timeline:
    """All that follows from the joined iteration, in the place of what the launch with all events showed."""
    issuers = [group for group in analysis.issuers(launch) if group in parts_of]
    alone = Neighbours.alone(cta)
    bubbles, in_flight = analysis.bubbles(launch, [alone], iteration_time.median) or ([], 0.0)
    if one_launch.bubbles_of == "SM":
        scale = iteration_time.median / one_launch.cycles_per_unit.median
        bubbles = [bubble.model_copy(update={"cycles": bubble.cycles * scale}) for bubble in one_launch.bubbles]
    bound = analysis.bound(launch)
    graph, rows = one_launch.replay, [*one_launch.what_if, *one_launch.withheld]
    self_times = {(region.warp_group, region.name): region.self_cycles or 0.0 for region in one_launch.regions}
    rate, again = _flop_per_cycle(launch, bound.cycles), Sms([alone], all_probes.program)
    shares_sm = graph is not None and graph.together > 1  # a joined CTA has no neighbours
    if not shares_sm and again.run_through(Assumptions(again.load_cycles, rate)):
        graph, rows, self_times = what_if([alone], all_probes.program, rate)
    else:
        joined = joined.model_copy(update={"replayed": False})
    made = one_launch.model_copy(
        update={
            "passes": passes,
            "joined": joined,
            "overhead": max(
                (record.overhead for record in passes), key=lambda cost: cost.ratio or cost.instrumented_ms
            ),
            "regions": _regions(one_launch, parts_of, iteration_time.median, self_times),
            "cycles_per_unit": iteration_time,
            "mma_use": _use(one_launch.mma_use, bound.cycles / iteration_time.median, in_flight),
            "fma_use": _use(one_launch.fma_use, bound.cycles / iteration_time.median, in_flight),
            "arithmetic": analysis.hidden_arithmetic(launch, [cta]),
            "load_wait": _load_wait(parts_of, issuers, iteration_time.median),
            "bubbles": bubbles,
            "replay": graph,
            "what_if": rows,
            "withheld": [],
            "windows": [
                *(window for window in analysis.windows(cta, issuers) if window.shows == "iterations"),
                *(window for window in one_launch.windows if window.shows != "iterations"),
            ],
        }
    )
    return concluded(made, None)


def _use(use: UnitUse | None, cta_main_loop: float, in_flight: float) -> UnitUse | None:
    return use and use.model_copy(update={"cta_main_loop": cta_main_loop, "in_flight_cta": in_flight})


def _flop_per_cycle(launch: Launch, cycles: float) -> float:
    return sum(mma.flop for mma in launch.mmas_per_iteration()) / cycles


def _regions(
    one_launch: Timeline,
    parts_of: Mapping[str, list[Part]],
    iteration_time: float,
    self_times: Mapping[tuple[str, str], float],
) -> list[RegionTime]:
    """Those of the main loop as joined; the others, and the share of both in a lifetime, as in one launch."""
    outside = [region for region in one_launch.regions if not region.per_iteration]
    known = {(region.warp_group, region.name): region.source for region in one_launch.regions}
    regions = []
    for group, parts in parts_of.items():
        looping = 1 - sum(region.share for region in outside if region.warp_group == group)
        named: dict[str, list[Part]] = defaultdict(list)
        for part in parts:
            named[part.interval.name].append(part)
        for name, named_parts in named.items():
            per_iteration = sum(part.cycles for part in named_parts)
            if not per_iteration:
                continue
            longest = max(named_parts, key=lambda part: part.cycles)
            regions.append(
                RegionTime(
                    warp_group=group,
                    name=name,
                    kind=named_parts[0].interval.kind,
                    cycles=longest.quantiles,
                    share=looping * per_iteration / iteration_time,
                    per_iteration=per_iteration,
                    self_cycles=self_times.get((group, name)),
                    passes=sorted({number for part in named_parts for number in part.passes}),
                    parts=analysis.region_parts(part.interval for part in named_parts),
                    source=analysis.source_of(part.interval for part in named_parts) or known.get((group, name)),
                )
            )
    inside = {(region.warp_group, region.name) for region in regions}
    return [*(region for region in outside if (region.warp_group, region.name) not in inside), *regions]


def _load_wait(parts_of: Mapping[str, list[Part]], issuers: Sequence[str], iteration_time: float) -> LoadWait | None:
    """As `views.load_wait`, of the joined iteration."""
    filled = {stage_ring for parts in parts_of.values() for part in parts for _, stage_ring in part.interval.loads}
    waits = []
    for group in issuers:
        waiting = [part for part in parts_of[group] if part.interval.uses or filled.intersection(part.interval.waits)]
        cycles = sum(part.cycles for part in waiting)
        names = list(dict.fromkeys(part.interval.name for part in waiting))
        if names:
            waits.append(LoadWait(warp_group=group, regions=names, cycles=cycles, share=cycles / iteration_time))
    return max(waits, key=lambda wait: wait.cycles, default=None)
