"""The view that a kernel's events ask for, and what it shows beside the pipeline of MMAs: memory, and imbalance.

*pipeline*: warp groups issue MMAs in a loop. *memory*: nobody does; then bytes and waits count. *imbalance*: the
CTAs of one launch differ in work, with MMAs or without. How the launch fills the SMs is shown in every view.
"""

from collections import defaultdict
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kperf.errors import UsageError
from kperf.trace.analyze import analysis
from kperf.trace.analyze.models import (
    About,
    Bar,
    Imbalance,
    IterationCounts,
    LoadWait,
    Memory,
    Slowest,
    SmUse,
    TrafficRecord,
    View,
    Wait,
    Window,
)
from kperf.trace.analyze.timeline import Cta, Launch, Span
from kperf.trace.instrument.program import Interval

EARLY_SHARE = 0.05
"""Of the CTAs that return early: from there on the view is imbalance."""
UNEVEN = 1.5
"""Iterations of a CTA over the median CTA's, or the other way round: likewise."""
MOST_BARS = 400
"""Of a CTA that is drawn whole."""
CURVE_POINTS = 160
"""Of a curve over the time of the launch."""


class Ctas:
    """The CTAs of a launch side by side: when and where each ran, and how many iterations it made.

    All arrays have one entry a CTA, in launch order; times are ns since the first CTA began. Iterations are of the main
    loop of the first warp group that issues MMAs, or else loads.
    """

    def __init__(self, launch: Launch) -> None:
        """Read headers and events."""
        events = launch.events
        begin = events.start_ns.min()
        self.start = events.start_ns - begin
        # The timer may stand still while a short CTA runs.
        self.end = np.maximum(events.end_ns, events.start_ns + 1) - begin
        self.span = int(self.end.max())
        self.sm = np.unique(events.sm, return_inverse=True)[1]
        self.n_sms = int(self.sm.max()) + 1
        self.program_id = events.program_id
        self.sm_id = events.sm
        self.whole = np.zeros(events.n_ctas, dtype=bool)
        self.whole[launch.whole_ctas] = True
        looping = [role for role in analysis.roles(launch) if launch.main_scope[role.warp_group] is not None]
        ranked = sorted(looping, key=lambda role: ("MMAs" not in role.duty, "loads" not in role.duty))
        self.has_loop = bool(ranked)
        self.silent = events.counts.sum(axis=1) == 0
        outside = np.array([scope.loop == 0 for scope in launch.program.scopes], dtype=bool)[launch.probes[:, 0] // 2]
        straight = np.bincount(events.cta_of(launch.places(outside)), minlength=events.n_ctas)
        self.loops = np.maximum(events.counts - 1, 0).sum(axis=1) > straight
        self.iterations: NDArray[np.int64] = np.zeros(events.n_ctas, dtype=np.int64)
        if ranked:
            self.iterations = launch.iterations_of_ctas(ranked[0].warp_group)

    @property
    def duration(self) -> NDArray[np.int64]:
        """How long each ran, in ns."""
        duration: NDArray[np.int64] = self.end - self.start
        return duration

    @cached_property
    def early(self) -> NDArray[np.bool_]:
        """CTAs that return early: no iteration of any loop where others make some; without loops in next to no time."""
        if self.has_loop:
            early: NDArray[np.bool_] = self.silent | (self.whole & ~self.loops)
            return early if self.loops.any() else np.zeros_like(early)
        short: NDArray[np.bool_] = self.silent | (self.duration < self.duration.max() / 100)
        return short

    @property
    def working(self) -> NDArray[np.int64]:
        """CTAs that do not return early and of which no event was lost."""
        return np.flatnonzero(self.whole & ~self.early)

    @property
    def working_iterations(self) -> NDArray[np.int64]:
        """Iterations of the CTAs that do not return early and of which no event was lost."""
        return self.iterations[self.working] if self.has_loop else np.zeros(0, dtype=np.int64)

    @property
    def differ(self) -> bool:
        """Whether the CTAs do unequal work."""
        if self.early.mean() >= EARLY_SHARE:
            return True
        iterations = self.working_iterations
        if not iterations.size:
            return False
        median = float(np.median(iterations))
        most = self.iterations[~self.early].max()  # of a CTA that lost events, as the longest do, at least so many
        return bool(most >= UNEVEN * median or iterations.min() * UNEVEN <= median)

    @cached_property
    def _busy(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Stretches in which an SM has at least one CTA: SM, start, end."""
        order = np.lexsort((self.start, self.sm))
        sm, start, end = self.sm[order], self.start[order], self.end[order]
        # One running maximum over all SMs: each SM's ends are lifted above those of the SMs before.
        lift = sm * (self.span + 1)
        reached = np.maximum.accumulate(end + lift) - lift
        opens = np.ones(len(sm), dtype=bool)
        opens[1:] = (sm[1:] != sm[:-1]) | (start[1:] > reached[:-1])
        first = np.flatnonzero(opens)
        last = np.append(first[1:], len(sm)) - 1
        return sm[first], start[first], reached[last]

    def sm_use(self) -> SmUse:
        """How the launch fills the SMs that it uses."""
        sm, start, end = self._busy
        busy = int((end - start).sum())
        ends = np.zeros(self.n_sms, dtype=np.int64)
        np.maximum.at(ends, sm, end)
        times = np.linspace(0, self.span, CURVE_POINTS)
        at_once = [_running(times, *stretches) for stretches in ((start, end), (self.start, self.end))]
        return SmUse(
            sms=self.n_sms,
            span_us=self.span / 1e3,
            resident=float(self.duration.sum() / busy),
            most_resident=self._most_resident(),
            idle=1 - busy / (self.n_sms * self.span),
            first_end_us=float(ends.min()) / 1e3,
            median_end_us=float(np.median(ends)) / 1e3,
            busy_sms=at_once[0].tolist(),
            running_ctas=at_once[1].tolist(),
        )

    def _most_resident(self) -> int:
        """The most CTAs that ever were on one SM at once."""
        sm = np.concatenate([self.sm, self.sm])
        time = np.concatenate([self.start, self.end])
        change = np.repeat([1, -1], len(self.sm))
        order = np.lexsort((change, time, sm))  # at the same time the CTA that ends makes room first
        return int(np.cumsum(change[order]).max())

    def imbalance(self) -> Imbalance:
        """How the CTAs differ."""
        working = ~self.early
        slowest = int(np.argmax(self.duration))
        iterations = self.working_iterations
        return Imbalance(
            early_share=float(self.early.mean()),
            early_time_share=float(self.duration[self.early].sum() / self.duration.sum()),
            iterations=(
                IterationCounts(
                    least=int(iterations.min()), median=float(np.median(iterations)), most=int(iterations.max())
                )
                if iterations.size
                else None
            ),
            cta_us=analysis.quantiles(self.duration[working]).scaled(1e-3),
            slowest=Slowest(
                program_id=int(self.program_id[slowest]),
                sm=int(self.sm_id[slowest]),
                iterations=int(self.iterations[slowest]) if self.has_loop and self.whole[slowest] else None,
                start_us=float(self.start[slowest]) / 1e3,
                us=float(self.duration[slowest]) / 1e3,
            ),
        )


def _running(times: NDArray[np.floating[Any]], start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many stretches are under way at each time."""
    begun = np.searchsorted(np.sort(start), times, side="right")
    return begun - np.searchsorted(np.sort(end), times, side="right")


def choose(launch: Launch) -> View:
    """The view that fits the kernel."""
    if Ctas(launch).differ:
        return "imbalance"
    return "pipeline" if has_pipeline(launch) else "memory"


def has_pipeline(launch: Launch) -> bool:
    """Whether a warp group issues MMAs in a loop."""
    return any(launch.iteration_times(group).size for group in analysis.issuers(launch))


def cta_window(cta: Cta) -> Window:
    """A whole CTA to draw, or its first MOST_BARS intervals; loads into registers from their issue to their use."""
    bars = analysis.bars_of(cta)
    for group, spans in cta.spans.items():
        pending: list[tuple[str, Span]] = []
        for span in spans:
            if category(span.interval) == WAITING:
                bars += [
                    Bar(
                        track="loads",
                        warp_group=group,
                        name=argument,
                        kind="load",
                        start=issued.start - cta.start,
                        cycles=span.end - issued.start,
                        iteration=issued.iteration,
                    )
                    for argument, issued in pending
                ]
                pending = []
            pending += [(part.argument, span) for part in span.interval.traffic if part.loaded]
    return Window(shows="CTA", start=0, bars=sorted(bars, key=lambda bar: bar.start)[:MOST_BARS])


def memory(launch: Launch, about: About) -> Memory:
    """Bytes, rates, and where a CTA waits. Rates are at the original kernel's time.

    Of sampled CTAs bytes are those of the recorded ones, times how many CTAs there are for each.
    """
    traffic, in_flight = _traffic(launch)
    if about.sampled:
        each = about.sampled.ctas / about.sampled.recorded
        traffic = [
            part.model_copy(
                update={
                    "loaded_bytes": round(part.loaded_bytes * each),
                    "stored_bytes": round(part.stored_bytes * each),
                }
            )
            for part in traffic
        ]
    seconds = about.overhead.launch_ms / 1e3
    moved = sum(t.loaded_bytes + t.stored_bytes for t in traffic)
    return Memory(
        traffic=traffic,
        gb_per_s=moved / seconds / 1e9,
        waits=_waits(launch),
        loads_in_flight_bytes=in_flight,
    )


def load_wait(launch: Launch, iteration_cycles: float) -> LoadWait | None:
    """Where the groups that issue MMAs wait for loads, into registers or into shared memory; None if nowhere."""
    filled = {stage_ring for interval in launch.intervals for _, stage_ring in interval.loads}
    waiting = np.array([bool(i.uses or filled.intersection(i.waits)) for i in launch.intervals], dtype=bool)
    waits_of_groups = []
    for group in analysis.issuers(launch):
        waits_of_group = np.flatnonzero(launch.in_loop & waiting & (launch.ran > 0))
        waits_of_group = waits_of_group[[launch.intervals[kind].group == group for kind in waits_of_group]]
        names = dict.fromkeys(launch.intervals[kind].name for kind in waits_of_group)
        cycles = float(launch.spent[waits_of_group].sum()) / max(launch.iterations(group), 1)
        waits_of_groups.append(
            LoadWait(warp_group=group, regions=[*names], cycles=cycles, share=cycles / iteration_cycles)
        )
    most = max(waits_of_groups, key=lambda wait: wait.cycles, default=None)
    return most if most and most.regions else None


def _traffic(launch: Launch) -> tuple[list[TrafficRecord], float]:
    """Bytes by argument, and the bytes of loads that a CTA has in flight on average.

    A load is in flight from the start of the interval that issues it to the end of the one that uses it first.
    """
    counted = launch.recorded_once()
    ran = np.where(counted, launch.ran, 0)
    loaded: dict[str, int] = defaultdict(int)
    stored: dict[str, int] = defaultdict(int)
    for interval, times in zip(launch.intervals, ran.tolist(), strict=True):
        for part in interval.traffic:
            loaded[part.argument] += times * part.loaded
            stored[part.argument] += times * part.stored
    records = [
        TrafficRecord(
            argument=argument,
            loaded_bytes=loaded[argument],
            stored_bytes=stored[argument],
            places=launch.program.rereads.get(argument, 1),
        )
        for argument in dict.fromkeys([*loaded, *stored])
        if loaded[argument] or stored[argument]
    ]
    return records, _bytes_in_flight(launch, counted)


def _bytes_in_flight(launch: Launch, counted: NDArray[np.bool_]) -> float:
    """Mean over a CTA's lifetime: each load's bytes, from its issue to the end of the next gap that uses a load."""
    size = np.array([sum(part.loaded for part in interval.traffic) for interval in launch.intervals])
    uses = np.array([category(interval) == WAITING for interval in launch.intervals], dtype=bool)
    issue = launch.places(counted & (size > 0))
    use = launch.places(counted & uses)
    following = np.searchsorted(use, issue)
    met = following < len(use)
    issue, use = issue[met], use[following[met]]
    same = launch.events.row_of(issue) == launch.events.row_of(use)
    issue, use = issue[same], use[same]
    held = (launch.events.cycle[use + 1] - launch.events.cycle[issue]).astype(np.float64)
    lived = float(launch.spent[counted].sum())
    return float((size[launch.kind[issue]] * held).sum() / lived) if lived else 0.0


WAITING = "waiting for loads"
_REDUCTIONS = {"tt.reduce", "tt.scan", "tt.histogram"}


def category(interval: Interval) -> str:
    """What a warp does in an interval, coarsely; a first use of loads counts as waiting, with the arithmetic in it."""
    operations = {part.operation for part in interval.parts}
    barrier = any(operation.endswith(".barrier") for operation in operations)
    if interval.uses or (interval.kind == "wait" and not barrier):
        return WAITING
    if barrier:
        return "barriers"
    if operations & _REDUCTIONS:
        return "reductions"
    return {"load": "issuing loads", "store": "stores", "arithmetic": "arithmetic", "tensor": "MMAs"}.get(
        interval.kind, "other"
    )


def _waits(launch: Launch) -> list[Wait]:
    """Share of a CTA's lifetime by what its warps do; the first load that is waited for stands apart."""
    names = [category(interval) for interval in launch.intervals]
    cycles: dict[str, int] = defaultdict(int)
    for name, spent in zip(names, launch.spent.tolist(), strict=True):
        cycles[name] += spent
    loads = launch.places(np.array([name == WAITING for name in names], dtype=bool))
    first = loads[np.flatnonzero(np.diff(launch.events.row_of(loads), prepend=-1))]
    if len(first) < len(loads):
        cycles["first load"] = int(launch.cycles[first].sum())
        cycles[WAITING] -= cycles["first load"]
        cycles["later loads"] = cycles.pop(WAITING)
    whole = sum(cycles.values())
    if not whole:
        raise UsageError("the events of the launch span no cycle: nothing can be read from it")
    paths = int((launch.events.counts > 1).sum())
    ranked = sorted(cycles.items(), key=lambda item: -item[1])
    return [Wait(doing=name, share=spent / whole, cycles=spent / paths) for name, spent in ranked if spent]
