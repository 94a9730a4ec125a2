"""CTAs of one SM, simulated together and recorded together: unequal ones, with prologues, one in the place of another.

They share the tensor cores and nothing else. What a change saves is known by making it in all and running again.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import fmean

from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.timeline import Launch
from kperf.trace.instrument.program import Mma, Program

from .captures import ALL, _records, program_of
from .machine import Ask, Kernel, Machine, TensorCores, run_together
from .synthetic import encode, recording_of


@dataclass(frozen=True)
class Cta:
    """A CTA and when it begins: at cycle `start`, or so many cycles after another one has ended.

    `prologue`: cycles before the main loop of a consumer. `in_turn`: its two consumers issue one after the other, and
    each tells the other behind its issue.
    """

    kernel: Kernel
    start: int = 0
    after: int | None = None
    prologue: int = 0
    in_turn: bool = False


@dataclass
class Resident(Machine):
    """A CTA as it runs."""

    cta: Cta = Cta(Kernel())
    before: "Resident | None" = None

    def begin(self) -> dict[str, Generator[tuple[int, Ask], int, None]]:
        """What its warp groups do, once the CTA before it has ended."""
        self.turns: dict[str, list[int]] = {f"consumer {n}": [] for n in range(self.kernel.consumers)}
        return {group: self.behind(group) for group in super().begin()}

    def behind(self, group: str) -> Generator[tuple[int, Ask], int, None]:
        if self.before:
            ended = yield 0, self.before.ended
            self.start = ended + self.cta.start
        yield from self.producer() if group == "producer" else self.consumer(group, self.begins(group))

    def ended(self) -> int | None:
        """When its last warp group has ended; None before."""
        each = {"producer": 2} | dict.fromkeys(self.empties, 4)
        whole = all(len(self.records[group]) == n * self.kernel.iterations for group, n in each.items())
        return max(ended[-1][1] for ended in self.records.values()) if whole else None

    def begins(self, group: str) -> int:
        """When a warp group begins its loop."""
        return super().begins(group) + (self.cta.prologue if group.startswith("consumer") else 0)

    def consumer(self, name: str, start: int) -> Generator[tuple[int, Ask], int, None]:
        """As any, or in turn with the other one."""
        if not self.cta.in_turn:
            yield from super().consumer(name, start)
            return
        k, now = self.kernel, start
        first, other = name.endswith("0"), self.turns["consumer 1" if name.endswith("0") else "consumer 0"]
        for n in range(k.iterations):
            now = yield now, lambda n=n: self.arrivals[n] if n < len(self.arrivals) else None
            wanted = n - first
            now = yield now, lambda wanted=wanted: 0 if wanted < 0 else other[wanted] if wanted < len(other) else None
            now = self.note(name, "wait A full", now + k.barrier)
            now = yield now, lambda: 0  # in the order of time
            taken = max(now, self.cores.until)
            done = self.cores.until = taken + k.mma
            self.cores.worked += k.mma
            now = self.note(name, "issue", taken + k.issue)
            self.turns[name].append(now)
            now = max(now, done) + k.finish
            self.empties[name].append(now)
            now = self.note(name, "product wait", now)
            now = self.note(name, "arithmetic", now + k.arithmetic)


def run(ctas: Sequence[Cta]) -> list[Resident]:
    """All of them, on one SM."""
    cores = TensorCores()
    machines: list[Resident] = []
    for cta in ctas:
        before = None if cta.after is None else machines[cta.after]
        machines.append(Resident(cta.kernel, cores=cores, start=cta.start, cta=cta, before=before))
    run_together(machines)
    return machines


def changed(ctas: Sequence[Cta], **change: int) -> list[Cta]:
    """Each with the same change."""
    return [replace(cta, kernel=replace(cta.kernel, **change)) for cta in ctas]


def steps(machine: Machine) -> list[int]:
    """Cycles from iteration to iteration of its consumers, from the second one on."""
    ends = [[cycle for what, cycle in machine.records[name] if what == "arithmetic"] for name in machine.empties]
    return [b - a for mine in ends for a, b in pairwise(mine)]


def iteration(ctas: Sequence[Cta]) -> float:
    """Mean cycles of an iteration of all CTAs."""
    return fmean([cycles for machine in run(ctas) for cycles in steps(machine)])


def saving(ctas: Sequence[Cta], **change: int) -> float:
    """Mean cycles of an iteration that the change saves, if it is made in all of them."""
    return iteration(ctas) - iteration(changed(ctas, **change))


def without_mma(machines: Sequence[Resident]) -> tuple[int, int]:
    """Cycles in which all of them run, and of these those in which none waits for an MMA that it has issued."""
    low = max(machine.begins("consumer 0") for machine in machines)
    high = min(min(ended[-1][1] for ended in machine.records.values()) for machine in machines)
    busy: set[int] = set()
    for machine in machines:
        for group in machine.empties:
            for (_, issue), _, (name, done) in zip(*(machine.records[group][n:] for n in range(3)), strict=False):
                busy |= set(range(issue, done)) if name == "product wait" else set()
    return high - low, high - low - sum(low <= cycle < high for cycle in busy)


def launch(ctas: Sequence[Cta], bytes_per_warp: int = 16384) -> Launch:
    """What is recorded of them, at no cost."""
    machines = run(ctas)
    program = _program(ctas[0])
    recording = recording_of(program, bytes_per_warp=bytes_per_warp, memory="global")
    buffer = encode([_of_life(machine, program) for machine in machines], recording, sms=1, timed=True)
    return Launch(decode(buffer, recording), program, recording.warps)


def _of_life(machine: Resident, program: Program) -> list[list[tuple[int, bool, int]]]:
    """Each warp's events; its life begins with the CTA."""
    return [[(*first[:2], machine.start), *others] for first, *others in _records(machine, program, ALL)]


def _program(cta: Cta) -> Program:
    program, _ = program_of(cta.kernel, ALL)
    if cta.in_turn:
        turn = {group: (1, f"turn of {group}") for group in ("consumer 0", "consumer 1")}
        program.stages |= {turn["consumer 0"]: 1, turn["consumer 1"]: 0}
        for interval in program.intervals.values():
            if interval.name == "wait A full":
                interval.waits = (*interval.waits, turn[interval.group])
            if any(isinstance(step, Mma) for step in interval.queue):
                interval.signals = (
                    *interval.signals,
                    turn["consumer 1" if interval.group[-1] == "0" else "consumer 0"],
                )
    return program
