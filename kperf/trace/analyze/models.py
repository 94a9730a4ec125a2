"""What a `timeline.json` holds, of any kernel: what the analysis computes is what is kept."""

from collections import Counter
from typing import Any, Literal

from pydantic import Field, model_validator

from kperf.record.bandwidth import Bandwidth
from kperf.record.store import Environment, Frozen
from kperf.trace.analyze.finding import Finding, Source
from kperf.trace.instrument.program import IntervalKind

CLOCK_TOLERANCE = 0.01
"""By how much a measured clock may be above the GPU's highest."""

MOST_DISTURBED = 1.1
"""Instrumented over original: beyond it the shares that events show are those of another kernel."""

View = Literal["pipeline", "memory", "imbalance"]
Unit = Literal["iteration", "CTA"]
Recorded = Literal["all CTAs", "sampled CTAs", "original kernel", "samples"]
"""What a fact was read from: a launch that recorded all CTAs or a sample of them, or the original kernel's own time, or
samples of its instructions."""
Duty = Literal["MMAs", "loads", "MMAs and loads", "neither"]


class Quantiles(Frozen):
    """Cycles."""

    median: float
    p5: float
    p95: float

    def scaled(self, factor: float) -> "Quantiles":
        """All three times `factor`, for another unit."""
        return Quantiles(median=self.median * factor, p5=self.p5 * factor, p95=self.p95 * factor)


class KernelResources(Frozen):
    """What one compiled kernel takes: registers a thread, bytes spilled a thread, bytes of shared memory a CTA.

    `occupancy`: CTAs that fit on an SM at once.
    """

    registers: int
    spilled_bytes: int
    shared_bytes: int
    occupancy: int


class Resources(Frozen):
    """The original kernel's, and those of the instrumented one."""

    original: KernelResources
    instrumented: KernelResources


class Residency(Frozen):
    """CTAs of the launch that are on an SM at once: as many as fit, and as there are for each SM.

    None where a kernel's resources were not recorded.
    """

    original: int | None
    instrumented: int | None


class Overhead(Frozen):
    """Median time of the original and of the instrumented kernel in one run, and their ratio.

    `original_ms` and `ratio` are None where a script launched the kernel no second time. The samples are the launches
    in turn, empty in records that did not keep them.
    """

    original_ms: float | None
    instrumented_ms: float
    ratio: float | None
    original_samples_ms: list[float] = Field(default_factory=list)
    instrumented_samples_ms: list[float] = Field(default_factory=list)

    @property
    def launch_ms(self) -> float:
        """The original kernel's time, or the instrumented one's where that alone is known."""
        return self.instrumented_ms if self.original_ms is None else self.original_ms

    @property
    def cost(self) -> str:
        """What tracing costs, in words."""
        return "costs an unknown part" if self.ratio is None else f"costs {self.ratio - 1:.1%}"

    def __str__(self) -> str:
        instrumented = f"{self.instrumented_ms:.3f} ms instrumented"
        if self.ratio is None:
            return instrumented
        return f"{self.original_ms:.3f} ms original, {instrumented} ({self.ratio - 1:+.1%})"


class SassOrder(Frozen):
    """The order of what is compared in the machine code of both kernels, and where they differ, in words."""

    original: list[str]
    instrumented: list[str]
    same: bool
    differences: list[str]


class Pass(Frozen):
    """One traced launch: the regions that were recorded in it, what they cost, and what they moved.

    Of several passes, `regions` names the probes besides the anchors; `events_per_iteration`: of the warp group that
    writes most; `iteration_cycles`: from anchor to anchor in its events, in the mean of typical iterations. Of one pass
    both are None.
    """

    regions: list[str]
    overhead: Overhead
    sass_order: SassOrder
    resources: KernelResources | None = None
    events_per_iteration: int | None = None
    iteration_cycles: float | None = None


class SampledCtas(Frozen):
    """The CTAs of a launch that were recorded: every `stride`th from `first` on; the others ran the original code.

    `ctas`: of the launch. A CTA's number counts x, then y, then z.
    """

    stride: int
    first: int
    recorded: int
    ctas: int


class About(Frozen):
    """What was launched, and what tracing it cost: all of a timeline that is not read from its events.

    `label`: what figures and sentences call the kernel. `file`: where its source begins. `sampled`: None where all CTAs
    were recorded; `why_all`: why they were, where a sample was asked for. What version 1 of a timeline does not say is
    None.
    """

    kernel: str
    label: str
    file: str
    ttgir_sha256: str
    grid: tuple[int, ...]
    ctas_per_sm: int | None
    resources: Resources | None
    workload: str | None = None
    arguments: dict[str, str] = Field(default_factory=dict)
    environment: Environment
    overhead: Overhead
    passes: list[Pass]
    bandwidth: Bandwidth | None = None
    sampled: SampledCtas | None = None
    why_all: str = ""


class Role(Frozen):
    """A warp group, what it does for the others, and the warp that was recorded."""

    warp_group: str
    duty: Duty
    first_warp: int
    num_warps: int

    @property
    def row(self) -> str:
        """What its row is called: of warps that all run the same code, the one that was recorded."""
        return self._alike.get(self.warp_group, self.warp_group)

    @property
    def is_specialised(self) -> bool:
        """Whether other warp groups run other code."""
        return self.warp_group not in self._alike

    @property
    def _alike(self) -> dict[str, str]:
        """Rows of warps that all run the same code."""
        return {"all warps": f"warp {self.first_warp} of {self.num_warps}", "last warp": f"warp {self.first_warp}"}


class RegionPart(Frozen):
    """One kind of work of a region, and what it is called."""

    name: str
    kind: IntervalKind


class RegionTime(Frozen):
    """One region of a warp group: cycles each time, share of the group's lifetime, and cycles of an iteration.

    `parts`: all kinds of work in it, in the order of the program; how long each takes is not recorded. `source`: where
    its first operation stands.

    `self_cycles`: each time in the main loop beyond what it hangs on (kperf/trace/analyze/replay.py), in the median;
    None outside of it. `per_iteration` and `self_cycles` are None in version 1. `passes`: in which of several passes
    its two ends were measured; empty where all is from one launch.
    """

    warp_group: str
    name: str
    kind: IntervalKind
    cycles: Quantiles
    share: float
    per_iteration: float | None
    self_cycles: float | None = None
    passes: list[int] = Field(default_factory=list)
    parts: list[RegionPart] = Field(default_factory=list)
    source: Source | None = None


UnitOfCompute = Literal["tensor core", "fma", "none"]
"""What computes a kernel's matrix products; "none": it has none."""


class Bound(Frozen):
    """The cycles that the MMAs of an iteration take at the peak rate of their type, all warp groups' together.

    `instruction`: by which they are computed (`kperf.trace.instrument.program.Instruction`); None in version 2.
    """

    cycles: float
    dtype: str
    instruction: str | None = None


class UnitUse(Frozen):
    """How busy the units that compute matrix products are: shares of their peak rate, and of the time.

    `sm`: of all resident CTAs: the launch's operations over the original kernel's time at the measured clock, on the
    SMs that have CTAs. `sm_recorded`: operations of all CTAs on the SM while a typical one runs, from the events.
    `cta_main_loop`: of one CTA in its main loop, the bound over the iteration time. `in_flight_cta`: share of the time
    in which one CTA has an MMA between its issue and the end of the wait for it, queueing and latency included;
    `in_flight_sm`: in which any CTA of the SM has one. None: not known.
    """

    sm: float | None
    sm_recorded: float | None = None
    cta_main_loop: float
    in_flight_cta: float
    in_flight_sm: float | None = None


class Confidence(Frozen):
    """How far the reading is of the original kernel, and what speaks against it, a sentence each."""

    level: Literal["high", "medium", "low"]
    reasons: list[str]


class Hidden(Frozen):
    """Cycles of arithmetic in an iteration of a warp group, and of them those under MMAs: its own, anyone's."""

    cycles: float
    under_own_mmas: float
    under_any_mmas: float


class Bubble(Frozen):
    """Cycles of an iteration with no MMA in flight, by what the warp groups that issue them do meanwhile.

    Of all CTAs of an SM together, or of one CTA (`Timeline.bubbles_of`).
    """

    cause: str
    cycles: float


class Replayed(Frozen):
    """How well the replay of the dependency graph explains some CTAs: their iteration time, measured and replayed.

    A load is taken to last `load_cycles`, the tensor cores of an SM to do `flop_per_cycle` operations. Mean cycles.
    `together`: CTAs that were on an SM at once at most and were replayed together, one behind the other at the tensor
    cores; 1: each was by itself.
    """

    ctas: int
    together: int
    measured_cycles: float
    cycles: float
    load_cycles: float
    flop_per_cycle: float

    @property
    def error(self) -> float:
        """How far off the measured iteration time it is, with its sign."""
        return self.cycles / self.measured_cycles - 1


class WhatIf(Frozen):
    """A what-if saving: by how many cycles an iteration would be shorter if a region of a warp group took no time.

    Nor what it waits for. `warp_group` is "all" for the region in all groups at once, "tensor cores" for an MMA on
    them. `assumed_low`, `assumed_high`: the least and the most when a load takes a fifth less or more, or the tensor
    cores are a fifth slower or faster. `low`, `high`: these, wider by what events, passes and the replay leave open,
    and no more than the iteration is above its bound.
    """

    region: str
    warp_group: str
    cycles: float
    low: float
    high: float
    assumed_low: float
    assumed_high: float


class WithheldWhatIf(WhatIf):
    """A saving that the other launches contradict, or that is not told apart from none; `why` says so."""

    why: str


class IterationTime(Frozen):
    """Cycles from iteration to iteration, in the launch that events change least.

    `pass_number`: which of several passes that is, from 1; None: the launch with all events. `cost`: share by which
    that launch takes longer than the original kernel's; None if not known. `least`, `most`: of all launches.
    """

    cycles: float
    pass_number: int | None
    cost: float | None
    least: float
    most: float


class EventCount(Frozen):
    """Events of the launch: how many were written, and how many of them overwritten before they were read."""

    written: int
    lost: int


class Bar(Frozen):
    """Something that took `cycles` from `start` on, cycles since the CTA's first event.

    On track "warps" a region of a warp group; on "MMAs" what a group issued, until it was waited for; on "loads"
    a buffer's load, from its issue to the end of the first wait for it. `iteration` is None outside of the main loop.
    `parts`: kinds of work in a region that does more than one.
    """

    track: Literal["warps", "MMAs", "loads"]
    warp_group: str
    name: str
    kind: IntervalKind
    start: int
    cycles: int
    iteration: int | None
    parts: list[IntervalKind] = Field(default_factory=list)


class Window(Frozen):
    """A stretch of a typical CTA that is worth drawing, from `start` on: middle iterations, a tile's end, or all."""

    shows: Literal["iterations", "tile boundary", "CTA"]
    start: int
    bars: list[Bar]


class SmUse(Frozen):
    """How a launch fills the SMs that it uses, by the CTAs' own timers. us: microseconds since the first CTA began.

    resident: CTAs on an SM while it has any, on average; most_resident: at most. idle: share of the SMs' time until
    the launch ends in which they have no CTA. first_end_us, median_end_us: when the first SM, and half of the SMs,
    had ended their last CTA. busy_sms, running_ctas: SMs with a CTA, and CTAs, at evenly spaced times of the
    launch from its first moment to its last.
    """

    sms: int
    span_us: float
    resident: float
    most_resident: int
    idle: float
    first_end_us: float
    median_end_us: float
    busy_sms: list[int]
    running_ctas: list[int]


class TrafficRecord(Frozen):
    """Bytes that all CTAs load from and store to what an argument points at.

    Requested bytes: each operation's tensor, masked lanes included, times how often it ran; what a cache serves counts
    each time that it is asked for. `places`: at how many places of the kernel the same addresses are loaded.
    `unique_bytes`: of the argument's addresses that are moved, each once, loads and stores apart, which is what device
    memory has to move at least; None where the argument's size is not known.
    """

    argument: str
    loaded_bytes: int
    stored_bytes: int
    places: int = 1
    unique_bytes: int | None = None


class Wait(Frozen):
    """What the recorded warps do: its share of their lifetime, and cycles of one CTA."""

    doing: str
    share: float
    cycles: float


class Memory(Frozen):
    """What a kernel moves, how fast (at the original kernel's time), and where its CTAs wait.

    `gb_per_s`: of requested bytes. `unique_gb_per_s`: of bytes that device memory has to move at least.

    loads_in_flight_bytes: of a CTA, on average over its lifetime, from a load's issue to its first use.
    """

    traffic: list[TrafficRecord]
    gb_per_s: float
    unique_gb_per_s: float | None = None
    waits: list[Wait]
    loads_in_flight_bytes: float


class LoadWait(Frozen):
    """What an iteration of a warp group that issues MMAs spends where it waits for loads: in its regions, in cycles.

    Of several groups the one that spends most. A wait that is over at once takes some dozen cycles too, and a gap in
    which a load into registers is used first counts whole, with what it issues besides. `share_by_events`: where
    samples decide `share`, and `cycles` with it, what events say; else None.
    """

    warp_group: str
    regions: list[str]
    cycles: float
    share: float
    share_by_events: float | None = None


class LineSamples(Frozen):
    """Samples of warps whose next instruction is of a line of source.

    `not_issued`: those in which no warp of the scheduler issued. `stalls`: by what the warps wait for, as
    `kperf.trace.analyze.stalls.STALLS` describes it. `awaited`: samples at any line that wait for what this one loads.
    A line without samples of its own may be awaited. `file` is empty and `line` 0 where the machine code has no line.
    """

    file: str
    line: int = Field(ge=0)
    samples: int = Field(ge=0)
    not_issued: int = Field(ge=0)
    stalls: dict[str, int]
    awaited: dict[str, int] = Field(default_factory=dict)


class PcSamples(Frozen):
    """Samples that the GPU took of the original kernel, of all its warps, in launches of its own.

    `period_cycles`: cycles between two samples of an SM. `dropped`: samples that the GPU lost. `lines`: those
    with most samples first.
    """

    launches: int = Field(ge=1)
    period_cycles: int = Field(ge=1)
    dropped: int = Field(ge=0)
    lines: list[LineSamples]

    @property
    def total(self) -> int:
        """All samples of the kernel."""
        return sum(line.samples for line in self.lines)

    @property
    def stalls(self) -> dict[str, float]:
        """Share of the samples by what the warps wait for, the greatest first."""
        counts: Counter[str] = Counter()
        for line in self.lines:
            counts.update(line.stalls)
        return {reason: count / self.total for reason, count in counts.most_common()} if self.total else {}


class IterationCounts(Frozen):
    """Iterations of the main loop that a CTA makes: the least, the median, the most."""

    least: int
    median: float
    most: int


class Slowest(Frozen):
    """The CTA that ran longest. `iterations` is None without a loop, or where its events were overwritten."""

    program_id: int
    sm: int
    iterations: int | None
    start_us: float
    us: float


class Imbalance(Frozen):
    """How the CTAs of a launch differ.

    early_share: share of the CTAs that return early (no iteration where others make some); early_time_share:
    theirs of all CTAs' time. `iterations` and `cta_us` are of the others.
    """

    early_share: float
    early_time_share: float
    iterations: IterationCounts | None
    cta_us: Quantiles
    slowest: Slowest


class Joined(Frozen):
    """An iteration joined from several passes; what is outside of the main loop is from `one_pass`, with all events.

    The iteration time is that of `iteration_pass`, which changes the kernel's time least; `original_cycles`: what it
    would be without events, from that pass's own time and the original kernel's (None where that is unknown). The
    intervals of every pass add up to it within `tolerance`, its share, but for those of the passes `left_out`: `why`
    they show another schedule. `replayed`: whether replay and savings are of the joined iteration; of one
    that hangs on more of what comes before its loop than is known, or whose CTAs share an SM, they are of `one_pass`.
    """

    one_pass: Pass
    iteration_pass: int
    original_cycles: float | None
    tolerance: float
    replayed: bool = True
    left_out: list[int] = Field(default_factory=list)
    why: list[str] = Field(default_factory=list)

    @model_validator(mode="before")
    @classmethod
    def _closes(cls, given: Any) -> Any:
        """What is joined closes: earlier records of this version list where it does not, and were joined even so."""
        if isinstance(given, dict) and given.get("open"):
            raise ValueError("its passes do not make one iteration")
        return {name: value for name, value in given.items() if name != "open"} if isinstance(given, dict) else given


class Apart(Frozen):
    """Passes that were launched too and do not make one iteration: why, the greatest difference first.

    They do where the intervals of every pass add up to the same time within `tolerance`, its share, all probes lie in
    the order of the program, and warp groups are in the same step. Else each pass saw another schedule.
    """

    passes: list[Pass]
    tolerance: float
    why: list[str]


class Timeline(About):
    """`<name>.timeline.json`. Cycles are SM cycles at `clock_mhz`; a unit is an iteration of the main loop, or a CTA.

    `cycles_per_unit`: of the launch that is drawn, with all events, or of passes that were joined. `iteration`: of the
    launch that events change least; None where a unit is a CTA. `lifetime_covered`: recorded cycles of a CTA over
    its lifetime by the global timer. `tile_boundary_cycles`: of a CTA that computes several tiles, cycles from tile
    to tile beyond those from iteration to iteration. `ctas`: those that were recorded; `units`, `regions` and `events`
    are theirs. `all_ctas`: where CTAs were sampled, a launch of which all were recorded besides; without it `sms`
    and `imbalance` are None and the bytes of `memory` are estimated. `recorded_by`: by the name of a field, with a dot
    of a field's field, what it was read from (`kperf.trace.analyze.facts.recorded_by`).
    `no_samples`: why the GPU took none, where they were asked for.
    """

    schema_version: Literal[7] = 7
    view: View
    roles: list[Role]
    regions: list[RegionTime]
    unit: Unit
    units: int
    ctas: int
    clock_mhz: float
    cycles_per_unit: Quantiles
    iteration: IterationTime | None = None
    tile_boundary_cycles: Quantiles | None = None
    lifetime_covered: float
    unit_of_compute: UnitOfCompute
    bound: Bound | None
    mma_use: UnitUse | None
    fma_use: UnitUse | None = None
    residency: Residency = Residency(original=None, instrumented=None)
    confidence: Confidence = Confidence(level="low", reasons=["it was not judged"])
    findings: list[Finding] = Field(default_factory=list)
    arithmetic: Hidden | None
    bubbles: list[Bubble]
    bubbles_of: Literal["SM", "CTA"]
    replay: Replayed | None = None
    what_if: list[WhatIf] = Field(default_factory=list)
    withheld: list[WithheldWhatIf] = Field(default_factory=list)
    windows: list[Window]
    sms: SmUse | None = None
    memory: Memory | None = None
    load_wait: LoadWait | None = None
    imbalance: Imbalance | None = None
    joined: Joined | None = None
    apart: Apart | None = None
    samples: PcSamples | None = None
    no_samples: str = ""
    all_ctas: Pass | None = None
    recorded_by: dict[str, Recorded] = Field(default_factory=dict)
    events: EventCount
    verdict: list[str] = Field(default_factory=list)

    @property
    def launch_ctas(self) -> int:
        """All CTAs of the launch, recorded or not."""
        return self.sampled.ctas if self.sampled else self.ctas

    @property
    def sass_order(self) -> SassOrder:
        """Of the pass whose events these are; of several, the shortest difference of each that has some."""
        if self.joined is None:
            return self.passes[0].sass_order
        moved = [(number, record) for number, record in enumerate(self.passes) if not record.sass_order.same]
        first = moved[0][1].sass_order if moved else self.passes[0].sass_order
        differences = [
            f"with {'; '.join(record.regions)} (pass {number + 1}) in {len(record.sass_order.differences)} places, as "
            f"{min(record.sass_order.differences, key=len)}"
            for number, record in moved
        ]
        return SassOrder(
            original=first.original, instrumented=first.instrumented, same=not moved, differences=differences
        )

    def where(self, warp_group: str, region: str) -> str:
        """The line of source of a region, in brackets; empty where it is not known."""
        named = (r.source for r in self.regions if r.name == region and (r.warp_group == warp_group or r.source))
        source = next((source for source in named if source), None)
        return f" ({source.file}:{source.line})" if source else ""

    def row(self, warp_group: str) -> str:
        """What a warp group's row is called."""
        return next((role.row for role in self.roles if role.warp_group == warp_group), warp_group)

    @property
    def compute_use(self) -> UnitUse | None:
        """How busy the units are that compute the matrix products: tensor cores, or else FMA units."""
        return self.mma_use or self.fma_use

    @property
    def is_disturbed(self) -> bool:
        """Whether events cost the kernel more than a tenth of its time, or change the order of its instructions.

        Of several passes those of any of them.
        """
        return (
            any((record.overhead.ratio or 0.0) > MOST_DISTURBED for record in self.passes) or not self.sass_order.same
        )

    @property
    def clock_is_plausible(self) -> bool:
        """Whether the GPU can have run at the measured clock: the timer is too coarse for a short launch."""
        most = self.environment.max_sm_mhz
        return most <= 0 or self.clock_mhz <= most * (1 + CLOCK_TOLERANCE)

    @property
    def likely_clock_mhz(self) -> float:
        """The measured clock, or the GPU's highest where that is above it."""
        return self.clock_mhz if self.clock_is_plausible else float(self.environment.max_sm_mhz)
