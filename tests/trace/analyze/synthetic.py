"""Launches that never ran: profile buffers as Proton writes them, from a traced program and chosen durations.

The simulated time of a record is the chosen one, so what is read from the buffer can be compared with it exactly.
"""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np

from kperf.ir.sources import Value
from kperf.trace.instrument.program import Probe, Program
from kperf.trace.instrument.sampled import Sample
from kperf.trace.instrument.session import Recording

Record = tuple[int, bool, int]
"""(scope, is start, clock)."""


def encode(
    ctas: Sequence[Sequence[Sequence[Record]]],
    recording: Recording,
    sms: int = 132,
    *,
    timed: bool = False,
    sample: Sample | None = None,
) -> np.ndarray:
    """Bytes of a buffer: for each CTA, for each recorded warp, its records in the order they are written.

    `timed`: the global timer goes with the SMs' clocks, 1.7 cycles a ns, and not from wave to wave. `sample`: which
    CTAs of the launch the CTAs are.
    """
    words = np.zeros((len(ctas), recording.block_bytes // 4), dtype=np.uint32)
    known: dict[int, tuple[np.ndarray, int, int]] = {}
    for part, warps in enumerate(ctas):
        number = part if sample is None else sample.cta(part)
        start_ns = 10**18 + (number // sms) * 100_000
        if id(warps) not in known:  # one object may be thousands of CTAs
            clocks = [clock for records in warps for _, _, clock in records] or [0]
            known[id(warps)] = _written(warps, recording), min(clocks), max(clocks)
        words[part], first, last = known[id(warps)]
        if timed:
            start_ns, last = 10**18 + first * 10 // 17, last - first
        words[part, :4] = 0xDEADBEEF, number, number % sms, recording.buffer_bytes
        times = (start_ns, start_ns + last * 10 // 17, start_ns + last * 10 // 17 + 448)
        words[part, 4:10] = [half for time in times for half in (time & 0xFFFFFFFF, time >> 32)]
    return words.reshape(-1).view(np.uint8)


def _written(warps: Sequence[Sequence[Record]], recording: Recording) -> np.ndarray:
    """A CTA's part of the buffer without its header."""
    words = np.zeros(recording.block_bytes // 4, dtype=np.uint32)
    for index, records in enumerate(warps):
        words[10 + recording.warps[index]] = 2 * len(records)
        buffer = 10 + recording.total_warps + index * recording.bytes_per_warp // 4
        scope, is_start, clock = np.array(records or np.zeros((0, 3)), dtype=np.int64).T
        at = buffer + 2 * (np.arange(len(records)) % recording.events_per_warp)
        high = clock >> 32 & 0x7FF if recording.clock_bits == 64 else 0
        words[at] = (1 - is_start) << 31 | scope << 23 | high  # of a place written twice the last stays
        words[at + 1] = clock & 0xFFFFFFFF
    return words


def recording_of(program: Program, **options: object) -> Recording:
    """The recording that the program's instrumented kernel gets."""
    warps = tuple(sorted(group.first_warp for group in program.groups))
    return Recording(warps, program.total_warps, **options)  # type: ignore[arg-type]


def simulate(
    program: Program,
    iterations: int,
    cycles: Mapping[str, int],
    load_cycles: int = 0,
    delay: int = 0,
    clock: int = 0,
    tiles: int = 1,
) -> list[list[Record]]:
    """One CTA: every interval takes its `cycles`, and a wait also lasts until what it waits for is there.

    A load arrives `load_cycles` after it was issued; groups that meet go on when the last has come; consumer 1 starts
    `delay` cycles late. A persistent kernel computes `tiles` tiles of `iterations` iterations each, once.
    """
    order = {group.first_warp: group.name for group in program.groups}
    groups = [order[warp] for warp in sorted(order)]
    probes = {group: probes_of(program, group, iterations, tiles) for group in groups}
    if not is_persistent(program):
        # A peeled iteration of the consumers is one of the producer's loop.
        rounds = Counter(
            stage_ring for probe in pairwise(probes["consumer 0"]) for stage_ring in program.intervals[probe].waits
        )
        probes["producer"] = probes_of(program, "producer", max(rounds.values()))
    records = {group: [(*probes[group][0], clock)] for group in groups}
    loads: dict[Value, list[int]] = defaultdict(list)
    signals: dict[Value, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    waited: Counter[tuple[str, Value]] = Counter()
    signallers = {
        stage_ring: {i.group for i in program.intervals.values() if stage_ring in i.signals}
        for interval in program.intervals.values()
        for stage_ring in interval.signals
    }

    loaded = {stage_ring for interval in program.intervals.values() for _, stage_ring in interval.loads}
    meeting = {
        stage_ring: {i.group for i in program.intervals.values() if stage_ring in i.waits}
        for interval in program.intervals.values()
        for stage_ring in interval.waits
        if stage_ring not in loaded and stage_ring not in signallers
    }
    came: dict[tuple[Value, int], dict[str, int]] = defaultdict(dict)

    def ready(group: str, stage_ring: Value) -> int | None:
        number = waited[group, stage_ring]
        if stage_ring in meeting:
            came[stage_ring, number][group] = records[group][-1][2]
            there = came[stage_ring, number]
            return max(there.values()) if there.keys() == meeting[stage_ring] else None
        if stage_ring not in signallers:
            return loads[stage_ring][number] + load_cycles if number < len(loads[stage_ring]) else None
        number -= program.stages[stage_ring]
        if number < 0:
            return 0
        sent = [signals[stage_ring][other] for other in signallers[stage_ring]]
        return max(times[number] for times in sent) if all(number < len(times) for times in sent) else None

    unfinished = set(groups)
    while unfinished:
        before = sum(map(len, records.values()))
        for group in sorted(unfinished):
            while len(records[group]) < len(probes[group]):
                at = len(records[group])
                interval = program.intervals[probes[group][at - 1], probes[group][at]]
                start = records[group][-1][2]
                releases = [ready(group, stage_ring) for stage_ring in interval.waits]
                if None in releases:
                    break
                first = not any(waited[group, stage_ring] for stage_ring in interval.waits)
                late = delay if interval.name == "wait Q full" and group == "consumer 1" and first else 0
                end = max([start + cycles[interval.name] + late, *(time for time in releases if time is not None)])
                for stage_ring in interval.waits:
                    waited[group, stage_ring] += 1
                for _, stage_ring in interval.loads:
                    loads[stage_ring].append(end if interval.kind == "wait" else start)
                for stage_ring in interval.signals:
                    signals[stage_ring][group].append(end)
                records[group].append((*probes[group][at], end))
            else:
                unfinished.discard(group)
        assert not unfinished or sum(map(len, records.values())) > before, "a deadlock"
    return [records[group] for group in groups]


def is_persistent(program: Program) -> bool:
    """Whether the loop over the CTAs of k is inside one over tiles."""
    return any(len(scope.loops) > 1 for scope in program.scopes)


def probes_of(program: Program, group: str, iterations: int, tiles: int = 1) -> list[Probe]:
    """The records that a group writes, in order, if it takes the first of its innermost loops over blocks and no other.

    Of a persistent kernel: in each tile of its outermost loop. What stands in a loop between is for what overflows,
    which nothing does.
    """
    lifetime, *inner = [scope for scope in program.scopes if scope.group == group]
    outermost = next(scope.loops[0] for scope in inner if scope.loops)
    blocks = max((scope.loops for scope in inner if scope.loops[:1] == (outermost,)), key=len)
    tile = blocks[:1] if len(blocks) > 1 else ()
    loop = [scope for scope in inner if scope.loops == blocks]
    of_tile = [scope for scope in inner if tile and scope.loops == tile]
    head = [scope for scope in of_tile if scope.number < loop[0].number]
    tail = [scope for scope in of_tile if scope.number > loop[-1].number]
    before = [scope for scope in inner if not scope.loops and scope.number < loop[0].number]
    after = [scope for scope in inner if not scope.loops and scope.number > loop[-1].number]
    probes: list[Probe] = [(lifetime.number, True)]
    for scope in [*before, *([*head, *(loop * iterations), *tail] * tiles), *after]:
        probes += [(scope.number, True), (scope.number, False)]
    return [*probes, (lifetime.number, False)]
