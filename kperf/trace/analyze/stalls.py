"""What warps wait for, in CUPTI's words, and samples of instructions by line of source."""

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Container, Iterable
from dataclasses import dataclass, field

from kperf.compat.cupti import PcSample
from kperf.ir.machine import Instruction, MachineCode
from kperf.ir.scoreboards import FROM_GLOBAL, FROM_SHARED, Scoreboards
from kperf.trace.analyze.models import LineSamples, PcSamples, Timeline

STALLS = {
    "long_scoreboard": "wait for global or local memory",
    "lg_throttle": "wait to ask global memory: its queue is full",
    "tex_throttle": "wait to ask the texture unit",
    "drain": "wait for their last stores",
    "membar": "wait at a memory barrier",
    "short_scoreboard": "wait for shared memory or special functions",
    "mio_throttle": "wait to ask shared memory: its queue is full",
    "barrier": "wait for other warps at a barrier",
    "gmma": "wait for MMAs",
    "warpgroup_arrive": "wait for MMAs",
    "math_pipe_throttle": "wait for an arithmetic unit",
    "wait": "wait a fixed latency",
    "dispatch_stall": "wait for the dispatcher",
    "selected": "issue",
    "not_selected": "are ready while another warp issues",
    "branch_resolving": "wait for a branch",
    "no_instruction": "wait for instructions",
    "no_instructions": "wait for instructions",
    "imc_miss": "wait for constants",
    "sleeping": "sleep",
    "misc": "wait for something else",
}
"""Nsight Compute's Kernel Profiling Guide, "Warp Stall Reasons", in short; "38 % of the warps ..."."""
GLOBAL = frozenset({"long_scoreboard", "lg_throttle", "tex_throttle"})
"""Waits for what loads bring from beyond shared memory."""
SHARED = frozenset({"short_scoreboard", "mio_throttle"})
MMAS = frozenset({"gmma", "warpgroup_arrive"})
READY = frozenset({"selected", "not_selected"})
ISSUABLE = READY | {"math_pipe_throttle", "dispatch_stall"}
"""The warp issues, or would if a scheduler or a unit were free."""
COMPUTING = ISSUABLE | {"wait"}
"""The warp computes, or would if a unit were free."""
LEAST_SAMPLES = 400
"""With fewer a share is not known: of 400 a share of 5 % is 20, give or take 5."""
HALF = 0.5
"""Samples are of warps and events of the time of one: within a factor of two they say the same."""

_PRODUCERS = {"long_scoreboard": FROM_GLOBAL, "short_scoreboard": FROM_SHARED}


@dataclass
class _Line:
    not_issued: int = 0
    stalls: Counter[str] = field(default_factory=Counter)
    awaited: Counter[str] = field(default_factory=Counter)


def by_line(
    code: MachineCode, pcs: Iterable[PcSample], named: Callable[[str], str], *, launches: int, period: int, dropped: int
) -> PcSamples:
    """Samples by the line outside of Triton's library, and by the line whose load is waited for.

    An H200 counts the wait for MMAs (`WARPGROUP.DEPBAR`) as `barrier`. Here it is `gmma`, as CUPTI's word is.

    `named`: what a file is called here. Where an instruction waits for several loads, they share its samples.
    """
    instructions = {instruction.address: instruction for instruction in code.instructions}
    at_barriers = _at_barriers(code)
    scoreboards = Scoreboards(code)
    lines: defaultdict[tuple[str, int], _Line] = defaultdict(_Line)
    for pc in pcs:
        here = lines[_place(instructions.get(pc.address), named)]
        here.not_issued += pc.not_issued
        here.stalls["gmma" if pc.reason == "barrier" and pc.address not in at_barriers else pc.reason] += pc.samples
        loads = scoreboards.producers(pc.address, _PRODUCERS.get(pc.reason, ()))
        places = sorted({_place(load, named) for load in loads})
        for number, place in enumerate(places):
            lines[place].awaited[pc.reason] += (pc.samples + number) // len(places)
    by_samples = [
        LineSamples(
            file=file,
            line=number,
            samples=line.stalls.total(),
            not_issued=line.not_issued,
            stalls=dict(line.stalls.most_common()),
            awaited=dict(line.awaited.most_common()),
        )
        for (file, number), line in lines.items()
    ]
    by_samples.sort(key=lambda line: (-line.samples, line.file, line.line))
    return PcSamples(launches=launches, period_cycles=period, dropped=dropped, lines=by_samples)


def _at_barriers(code: MachineCode) -> Container[int]:
    """Addresses at which a warp may wait at a barrier: those of barriers, and the next; all where no MMA is waited for.

    What waits may be counted at the instruction behind.
    """
    addresses = [instruction.address for instruction in code.instructions]
    if not any(instruction.opcode.startswith("WARPGROUP.DEPBAR") for instruction in code.instructions):
        return addresses
    places = [
        place for place, instruction in enumerate(code.instructions) if "BAR" in instruction.opcode.partition(".")[0]
    ]
    return {address for place in places for address in addresses[place : place + 2]}


def _place(instruction: Instruction | None, named: Callable[[str], str]) -> tuple[str, int]:
    frame = instruction.frame if instruction is not None else None
    return (named(frame.file), frame.line) if frame is not None else ("", 0)


def decided(timeline: Timeline) -> Timeline:
    """With the share of its waits for loads by samples, if these were taken, where events disturb the kernel.

    And where samples show less than `HALF` of what events show: the region of a wait holds what warps do besides.
    """
    wait, samples = timeline.load_wait, timeline.samples
    if wait is None or samples is None or samples.total < LEAST_SAMPLES:
        return timeline
    regions = [
        region for region in timeline.regions if (region.warp_group, region.source is None) == (wait.warp_group, False)
    ]
    lines = {
        (region.source.file, region.source.line) for region in regions if region.name in wait.regions and region.source
    }
    share = min(_load_waits(samples, lines) / warps_of(timeline, [wait.warp_group]), 1.0)
    if not timeline.is_disturbed and share >= HALF * wait.share:
        return timeline
    cycles = share * timeline.cycles_per_unit.median
    by_samples = wait.model_copy(update={"share": share, "cycles": cycles, "share_by_events": wait.share})
    known = timeline.recorded_by | {"load_wait": "samples"}
    return timeline.model_copy(update={"load_wait": by_samples, "recorded_by": known})


def _load_waits(samples: PcSamples, lines: Collection[tuple[str, int]]) -> float:
    """Share of the samples that wait for global memory, or that wait for anything but MMAs where loads are awaited."""
    count = sum(
        samples_of_it
        for line in samples.lines
        for reason, samples_of_it in line.stalls.items()
        if reason in GLOBAL or ((line.file, line.line) in lines and reason not in COMPUTING | MMAS)
    )
    return count / samples.total if samples.total else 0.0


def warps_of(timeline: Timeline, groups: Collection[str]) -> float:
    """Share of a CTA's warps that run the code of these warp groups: about theirs of all samples.

    1 where that is not known, and where all warps run one code, of which the first and the last warp are recorded.
    """
    roles = timeline.roles
    everyone = {warp for role in roles for warp in range(role.first_warp, role.first_warp + role.num_warps)}
    of_groups = sum(role.num_warps for role in roles if role.warp_group in groups)
    apart = sum(role.num_warps for role in roles) == len(everyone)
    return of_groups / len(everyone) if apart and of_groups else 1.0
