"""What tracing costs, of every kernel that is recorded: the paper's Fig. 13, from timelines, and the choices measured.

A timeline holds the original and the instrumented kernel's time, in turn. So all that `make fig11` and `make examples`
record is here; `make overhead` on a Hopper GPU measures the choices of the variants besides (other buffers, clocks,
warps).
"""

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter
from rich.table import Table

from kperf.arch import H200, SM_90A
from kperf.console import titled_table
from kperf.errors import UsageError
from kperf.record.provenance import Provenance, Summary
from kperf.record.store import Environment, RecordStore
from kperf.studies import overhead
from kperf.studies.overhead import Taken
from kperf.studies.records import Common, Row, newest
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.recorded import read_timeline

PAPER_MEAN, PAPER_WORST = 0.082, 0.15
"""Of the paper's Fig. 13, over its four kernels: 8.2 % on average, the worst below 15 %."""
PAPER_CYCLES = 33
"""That the paper gives for one record."""
FIG13 = ("gemm_2_stages", "gemm_3_stages", "vanilla", "improved")
"""Our versions of the paper's four kernels: GEMM with software pipelining, and both schedules of attention."""
GOALS = {1: 0.05, 2: 0.03}
"""One pass in the mean; every one of several."""


class ChoiceRow(Row):
    """One way to record one kernel. Milliseconds of the original and the instrumented kernel in the same rounds.

    warps: how many of a CTA are recorded. passes: how many launches share the regions; each costs as much as this.
    """

    kernel: str
    choice: str
    pairs: int
    memory: Literal["shared", "global"]
    clock_bits: Literal[32, 64]
    warps: int
    bytes_per_warp: int
    passes: Annotated[int, Field(ge=1)] = 1
    same_order: bool
    plain_ms: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]
    traced_ms: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]

    @property
    def ratio(self) -> float:
        """Median of instrumented over original time of a round."""
        return statistics.median(ms / original for ms, original in zip(self.traced_ms, self.plain_ms, strict=True))


ROWS: TypeAdapter[ChoiceRow] = TypeAdapter(ChoiceRow)


def row(common: Common, kernel: str, taken: Taken) -> ChoiceRow:
    """The record of a choice."""
    recording = taken.traced.recording
    return ChoiceRow(
        **common,
        kernel=kernel,
        choice=taken.choice,
        pairs=taken.pairs,
        memory=recording.memory,
        clock_bits=recording.clock_bits,
        warps=len(recording.warps),
        bytes_per_warp=recording.bytes_per_warp,
        same_order=taken.same_order,
        plain_ms=taken.original_ms,
        traced_ms=taken.instrumented_ms,
    )


@dataclass(frozen=True)
class KernelCost:
    """What tracing a kernel costs, from its timeline. `ratio`: instrumented over original time of a launch with all
    records.

    several: the same of each of several passes, if there were any; joined: whether they make one iteration.
    cycles_a_record: the time that tracing adds to a CTA, over the records of a warp: what a record costs if all of it
    is the records' own, and not what they move. shared_left: bytes that a CTA may take besides without one CTA less on
    an SM: the largest buffer.
    """

    kernel: str
    ratio: float
    several: tuple[float, ...]
    joined: bool
    memory: Literal["shared", "device"]
    events_of_a_warp: float
    cycles_a_record: float
    shared_left: int
    same_order: bool
    environment: Environment

    @property
    def several_in_words(self) -> str:
        """The least and the most that a pass costs."""
        if not self.several:
            return "-"
        return f"{len(self.several)}: {min(self.several) - 1:+.1%} to {max(self.several) - 1:+.1%}"


def kernel_costs(folder: Path) -> list[KernelCost]:
    """Of every recorded timeline with an original kernel's time, the paper's kernels first.

    Raises `UsageError` for a broken one.
    """
    costs = {cost.kernel: cost for cost in _kernel_costs(folder)}
    if not costs:
        raise UsageError(f"{folder} has no timeline: `make fig11` and `make examples` on a Hopper GPU record them")
    return [costs[name] for name in sorted(costs, key=lambda name: (name not in FIG13, costs[name].ratio))]


def _kernel_costs(folder: Path) -> Iterator[KernelCost]:
    for path in sorted([*folder.glob("fig11/*.timeline.json"), *folder.glob("examples/*.timeline.json")]):
        timeline = read_timeline(path)
        if timeline.overhead.ratio is not None and timeline.overhead.original_ms is not None and timeline.resources:
            yield _kernel_cost(path.name.removesuffix(".timeline.json"), timeline)


def _kernel_cost(name: str, timeline: Timeline) -> KernelCost:
    assert timeline.resources is not None
    original, instrumented = timeline.resources.original, timeline.resources.instrumented
    every = timeline.joined.one_pass if timeline.joined else timeline.all_ctas
    whole = every.overhead if every else timeline.overhead
    passes = timeline.passes if timeline.joined else timeline.apart.passes if timeline.apart else []
    assert whole.original_ms is not None
    added_ms = whole.instrumented_ms - whole.original_ms
    records = timeline.events.written / timeline.ctas / len(timeline.roles)
    sms = timeline.sms
    at_once = sms.sms * sms.resident if sms else H200.sms * (timeline.ctas_per_sm or 1)
    rounds = max(timeline.launch_ctas / at_once, 1.0)
    warps = max(role.first_warp + role.num_warps for role in timeline.roles)
    return KernelCost(
        kernel=name,
        ratio=whole.instrumented_ms / whole.original_ms,
        several=tuple(record.overhead.ratio for record in passes if record.overhead.ratio is not None),
        joined=timeline.joined is not None,
        memory="shared" if instrumented.shared_bytes > original.shared_bytes else "device",
        events_of_a_warp=records,
        cycles_a_record=added_ms * 1e3 * timeline.clock_mhz / rounds / records,
        shared_left=SM_90A.shared_bytes_left(original.registers, original.shared_bytes, warps),
        same_order=timeline.sass_order.same,
        environment=timeline.environment,
    )


def choices(folder: Path) -> dict[str, list[overhead.Cost]]:
    """Kernel -> its ways to record: of the newest `make overhead`, else of `make fig11 COSTS=1`."""
    rows = newest(RecordStore(folder, "overhead", ROWS).points())
    by_kernel: dict[str, list[overhead.Cost]] = {}
    for row in rows:
        cost = overhead.Cost(choice=row.choice, pairs=row.pairs, ratio=row.ratio, same_order=row.same_order)
        by_kernel.setdefault(row.kernel, []).append(cost)
    for path in sorted(folder.glob("fig11/*.costs.json")):
        name = path.name.removesuffix(".costs.json")
        if name not in by_kernel:
            by_kernel[name] = overhead.read(path)
    return by_kernel


def table(costs: Sequence[KernelCost], stamp: str) -> Table:
    """A row a kernel."""
    events = ("events in", "events a warp", "cycles each")
    headers = ("kernel", "slower by", "several passes", *events, "free bytes", "order")
    made = titled_table(f"what tracing costs; {stamp}", *headers, left={"kernel", "events in", "order"})
    for cost in costs:
        made.add_row(
            cost.kernel,
            f"{cost.ratio - 1:+.1%}",
            cost.several_in_words,
            f"{cost.memory} memory",
            f"{cost.events_of_a_warp:.0f}",
            f"{cost.cycles_a_record:.0f}",
            str(cost.shared_left),
            "the original kernel's" if cost.same_order else "another",
        )
    return made


def summary(folder: Path) -> Summary:
    """For the table of claims, of the paper's four kernels: the mean and the largest cost, and a record's cycles."""
    costs = list(_kernel_costs(folder))
    ours = [cost for cost in costs if cost.kernel in FIG13]
    if len(ours) < len(FIG13):
        return Summary()
    numbers = {
        "fig13 mean": statistics.fmean(cost.ratio - 1 for cost in ours),
        "fig13 worst": max(cost.ratio - 1 for cost in ours),
        "cycles a record": statistics.median(cost.cycles_a_record for cost in ours),
    }
    return Summary(numbers, Provenance.of_timelines([cost.environment for cost in ours]))


def sentences(folder: Path, costs: Sequence[KernelCost]) -> list[str]:
    """What the numbers come to beside the paper's, and beside the goals."""
    means = summary(folder).numbers
    single = [cost.ratio - 1 for cost in costs]
    several = [cost for cost in costs if cost.several]
    lines = []
    if means:
        lines.append(
            f"Our versions of the paper's four kernels ({', '.join(FIG13)}): {means['fig13 mean']:.1%} on "
            f"average, {means['fig13 worst']:.1%} at most, where the paper has {PAPER_MEAN:.1%} and below "
            f"{PAPER_WORST:.0%}. A CTA takes {means['cycles a record']:.0f} cycles longer for each event of a warp, in "
            f"the median; the paper's {PAPER_CYCLES} cycles are those of the event's own instructions."
        )
    if costs:
        mean, most = statistics.fmean(single), max(costs, key=lambda cost: cost.ratio)
        met = "within" if mean <= GOALS[1] else "more than"
        lines.append(
            f"In one pass tracing costs {mean:.1%} on average over {len(single)} kernels ({met} the {GOALS[1]:.0%} "
            f"aimed at), {most.ratio - 1:.1%} at most ({most.kernel})."
        )
    if several:
        over = [f"{cost.kernel} ({max(cost.several) - 1:.1%})" for cost in several if max(cost.several) - 1 > GOALS[2]]
        held = f"more than {GOALS[2]:.0%} in {', '.join(over)}" if over else f"at most {GOALS[2]:.0%}"
        apart = [cost.kernel for cost in several if not cost.joined]
        lines.append(
            f"Of several passes, a few events each, the costliest of {len(several)} kernels costs {held}"
            + (f"; those of {', '.join(apart)} do not make one iteration." if apart else ".")
        )
    else:
        lines.append("Of several passes nothing is recorded yet: `make examples` on a Hopper GPU records them.")
    return lines
