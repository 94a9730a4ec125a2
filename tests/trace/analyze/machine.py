"""One SM of two or more consumers and a producer, simulated: rings of mbarriers, loads, a queue of MMAs.

Written from what the hardware does and not from what the analysis makes of records: each warp group is a Python
generator that asks for what it needs, and time passes as its answers come. So the iteration time after a change is
known by making the change here and running again.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import fmean

from kperf.trace.analyze.timeline import Cta, Span
from kperf.trace.instrument.program import Group, Interval, Mma, Program, Scope

FULL, EMPTY = (0, "full"), (0, "empty")
FLOP_PER_CYCLE = 4096

Ask = Callable[[], float | None]
"""When what a warp group asks for is there; None as long as nobody knows."""


@dataclass(frozen=True)
class Kernel:
    """Cycles of each part of an iteration. `late`: by how much each consumer begins after the one before."""

    consumers: int = 2
    stages: int = 2
    iterations: int = 24
    load: int = 700
    mma: int = 512
    issue: int = 110
    arithmetic: int = 1200
    barrier: int = 70
    finish: int = 84
    late: int = 300
    jitter: int = 0
    """Cycles by which every fifth MMA and load is late: another CTA of the SM came first."""
    uneven: int = 0
    """Cycles by which every second issue takes longer, with its MMA on its way meanwhile."""

    def late_by(self, n: int) -> int:
        """Of the n-th MMA or load."""
        return self.jitter * (n % 5 == 4)


@dataclass
class TensorCores:
    """Those of the SM: when they are done with what was issued, and for how long they worked."""

    until: int = 0
    worked: int = 0


@dataclass
class Machine:
    """Runs a CTA of a kernel; `records[group]` are (name of the interval that ends, its end).

    It begins at cycle `start`; CTAs that share an SM share its `cores`.

    After the end of an interval that is `recorded`, (consumer or producer, name), a warp writes a record for `cost`
    cycles.
    """

    kernel: Kernel
    recorded: frozenset[tuple[str, str]] = frozenset()
    cost: int = 0
    records: dict[str, list[tuple[str, int]]] = field(default_factory=dict)
    arrivals: list[int] = field(default_factory=list)
    empties: dict[str, list[int]] = field(default_factory=dict)
    cores: TensorCores = field(default_factory=TensorCores)
    start: int = 0

    def run(self) -> "Machine":
        """Until all are done."""
        run_together([self])
        return self

    def begin(self) -> dict[str, Generator[tuple[int, Ask], int, None]]:
        """What its warp groups do."""
        names = [f"consumer {n}" for n in range(self.kernel.consumers)]
        groups = {name: self.consumer(name, self.begins(name)) for name in names}
        groups["producer"] = self.producer()
        self.records = {name: [] for name in groups}
        self.empties = {name: [] for name in names}
        return groups

    def begins(self, group: str) -> int:
        """When a warp group begins."""
        return self.start + (int(group[-1]) * self.kernel.late if group.startswith("consumer") else 0)

    def note(self, group: str, name: str, cycle: int) -> int:
        """An interval ends; returns when the next begins."""
        self.records[group].append((name, cycle))
        return cycle + self.spent(group, name)

    def spent(self, group: str, name: str) -> int:
        """On a record where that interval ends."""
        return self.cost if (group.split(maxsplit=1)[0], name) in self.recorded else 0

    def producer(self) -> Generator[tuple[int, Ask], int, None]:
        """Fill a stage as soon as all consumers have emptied it."""
        now = self.start
        for n in range(self.kernel.iterations):
            wanted = n - self.kernel.stages
            now = self.note("producer", "other", now + 30)
            now = yield now, lambda wanted=wanted: self.emptied(wanted)
            now += self.kernel.barrier
            self.arrivals.append(now + self.kernel.load + self.kernel.late_by(n))
            now = self.note("producer", "wait A empty", now)

    def emptied(self, n: int) -> int | None:
        """When all consumers had emptied a stage for the n-th time."""
        if n < 0:
            return 0
        times = self.empties.values()
        return max(mine[n] for mine in times) if all(n < len(mine) for mine in times) else None

    def consumer(self, name: str, start: int) -> Generator[tuple[int, Ask], int, None]:
        """Wait for a stage, issue an MMA, wait for it, give the stage back, do arithmetic."""
        k, now = self.kernel, start + self.spent(name, "arithmetic")
        for n in range(k.iterations):
            now = yield now, lambda n=n: self.arrivals[n] if n < len(self.arrivals) else None
            now = self.note(name, "wait A full", now + k.barrier)
            now = yield now, lambda: 0  # in the order of time
            taken = max(now, self.cores.until)
            done = self.cores.until = taken + k.mma
            self.cores.worked += k.mma
            now = self.note(name, "issue", taken + k.issue + k.uneven * (n % 2))
            now = max(now, done) + k.finish + k.late_by(n)
            self.empties[name].append(now)
            now = self.note(name, "product wait", now)
            now = self.note(name, "arithmetic", now + k.arithmetic)

    def iteration_time(self) -> float:
        """Mean cycles from iteration to iteration, from the second iteration on."""
        steps = []
        for name in self.empties:
            ends = [cycle for what, cycle in self.records[name] if what == "arithmetic"]
            steps += [b - a for a, b in pairwise(ends[1:])]
        return fmean(steps)


def run_together(machines: Sequence[Machine]) -> None:
    """CTAs on one SM, until all are done; what is asked for first is answered first."""
    groups = {(n, name): group for n, one in enumerate(machines) for name, group in one.begin().items()}
    asked: dict[tuple[int, str], tuple[int, Ask]] = {key: next(group) for key, group in groups.items()}
    while asked:
        answers = [(max(since, found), key) for key, (since, ask) in asked.items() if (found := ask()) is not None]
        cycle, key = min(answers)
        try:
            asked[key] = groups[key].send(cycle)
        except StopIteration:
            del asked[key]


def residents(kernel: Kernel, starts: Sequence[int]) -> list[Machine]:
    """CTAs of a kernel that run on one SM and share its tensor cores, from these cycles on."""
    cores = TensorCores()
    machines = [Machine(kernel, cores=cores, start=start) for start in starts]
    run_together(machines)
    return machines


INTERVALS = {
    "wait A full": ("wait", {"waits": (FULL,)}),
    "issue": ("issue", {}),
    "product wait": ("tensor", {"queue": (0,), "signals": (EMPTY,)}),
    "arithmetic": ("arithmetic", {}),
    "other": ("other", {}),
    "wait A empty": ("wait", {"waits": (EMPTY,), "loads": (("A", FULL),)}),
}


ISSUES = {True: frozenset({"MMAs"}), False: frozenset({"loads"})}


def cta_and_program(kernel: Kernel) -> tuple[Cta, Program, Machine]:
    """What is recorded of a run, as a CTA of a program that is written down here by hand."""
    machine = Machine(kernel).run()
    cta, program = cta_of(machine)
    return cta, program, machine


def cta_of(machine: Machine, program_id: int = 0) -> tuple[Cta, Program]:
    """What is recorded of a CTA."""
    kernel = machine.kernel
    intervals: dict[tuple[str, str], Interval] = {}
    spans: dict[str, list[Span]] = {}
    for group, records in machine.records.items():
        start = machine.begins(group)
        spans[group] = []
        opens = "wait A full" if group != "producer" else "other"
        iteration = -1
        for name, end in records:
            kind, options = INTERVALS[name]
            if name == "issue":
                options = {"queue": (Mma("A @ B", kernel.mma * FLOP_PER_CYCLE, "bf16"),)}
            interval = intervals.setdefault((group, name), Interval(group, name, kind, **options))
            iteration += name == opens
            spans[group].append(Span(interval, start, end, iteration))
            start = end
    scopes, table = [], {}
    for group in machine.records:
        recorded = ["wait A empty"] if group == "producer" else ["wait A full", "product wait"]
        gaps = ["other"] if group == "producer" else ["issue", "arithmetic"]
        numbers = [len(scopes) + place for place in range(len(recorded))]
        scopes += [Scope(number, name, group, (1,)) for number, name in zip(numbers, recorded, strict=True)]
        for number, name, gap, following in zip(numbers, recorded, gaps, numbers[1:] + numbers[:1], strict=True):
            table[(number, True), (number, False)] = intervals[group, name]
            table[(number, False), (following, True)] = intervals[group, gap]
    groups = [Group(name, name, 4 * place, 4, ISSUES[name != "producer"]) for place, name in enumerate(machine.records)]
    program = Program("made", groups, 4 * len(groups), scopes, table, {EMPTY: kernel.stages, FULL: kernel.stages})
    return Cta(program_id, 0, 0, spans), program


DONE, FREE = (0, "done"), (0, "free")
ACCUMULATORS = 2


@dataclass
class TensorCoreMachine(Machine):
    """tcgen05: a warp issues MMAs and goes on; the tensor core arrives at mbarriers when each is done.

    It gives the stage back to the producer, and the result to a reader, who gives the accumulator back.
    """

    done: list[int] = field(default_factory=list)
    free: list[int] = field(default_factory=list)

    def begin(self) -> dict[str, Generator[tuple[int, Ask], int, None]]:
        """Who issues, who reads, who loads."""
        groups = {"issuer": self.issuer(), "reader": self.reader(), "producer": self.producer()}
        self.records = {name: [] for name in groups}
        return groups

    def emptied(self, n: int) -> int | None:
        """When the MMA that read a stage was done."""
        return 0 if n < 0 else self.done[n] if n < len(self.done) else None

    def freed(self, n: int) -> int | None:
        """When an accumulator had been read."""
        return 0 if n < 0 else self.free[n] if n < len(self.free) else None

    def issuer(self) -> Generator[tuple[int, Ask], int, None]:
        """Wait for a stage and an accumulator, issue."""
        k, now = self.kernel, 0
        for n in range(k.iterations):
            now = yield now, lambda n=n: self.arrivals[n] if n < len(self.arrivals) else None
            now = self.note("issuer", "wait A full", now + k.barrier)
            now = yield now, lambda n=n: self.freed(n - ACCUMULATORS)
            now = self.note("issuer", "wait result empty", now + k.barrier)
            now = yield now, lambda: 0  # in the order of time
            self.cores.until = max(now, self.cores.until) + k.mma
            self.done.append(self.cores.until)
            now = self.note("issuer", "issue", now + k.issue)

    def reader(self) -> Generator[tuple[int, Ask], int, None]:
        """Wait for a result, read it, do arithmetic."""
        k, now = self.kernel, 0
        for n in range(k.iterations):
            now = yield now, lambda n=n: self.done[n] if n < len(self.done) else None
            self.free.append(now + k.finish)
            now = self.note("reader", "product wait", now + k.finish)
            now = self.note("reader", "arithmetic", now + k.arithmetic)

    def iteration_time(self) -> float:
        """Mean cycles from iteration to iteration of who reads, from the second iteration on."""
        ends = [cycle for what, cycle in self.records["reader"] if what == "arithmetic"]
        return fmean(b - a for a, b in pairwise(ends[1:]))


TENSOR_CORE_INTERVALS = {
    "issuer": {
        "wait A full": ("wait", {"waits": (FULL,)}),
        "wait result empty": ("wait", {"waits": (FREE,)}),
        "issue": ("issue", {"arrives": (EMPTY, DONE)}),
    },
    "reader": {
        "product wait": ("tensor", {"waits": (DONE,), "signals": (FREE,)}),
        "arithmetic": ("arithmetic", {}),
    },
    "producer": {"other": INTERVALS["other"], "wait A empty": INTERVALS["wait A empty"]},
}
TENSOR_CORE_STAGES = {DONE: 0, FREE: ACCUMULATORS}


def tensor_core_cta(kernel: Kernel) -> tuple[Cta, dict, TensorCoreMachine]:
    """What is recorded of a run, the stages of its rings, and the run."""
    machine = TensorCoreMachine(kernel).run()
    mma = Mma("A @ B", kernel.mma * FLOP_PER_CYCLE, "bf16", "tcgen05")
    intervals = {
        (group, name): Interval(group, name, kind, **options, **({"queue": (mma,)} if name == "issue" else {}))
        for group, named in TENSOR_CORE_INTERVALS.items()
        for name, (kind, options) in named.items()
    }
    spans: dict[str, list[Span]] = {}
    for group, records in machine.records.items():
        start, opens, iteration, spans[group] = 0, next(iter(TENSOR_CORE_INTERVALS[group])), -1, []
        for name, end in records:
            iteration += name == opens
            spans[group].append(Span(intervals[group, name], start, end, iteration))
            start = end
    stages = {EMPTY: kernel.stages, FULL: kernel.stages, **TENSOR_CORE_STAGES}
    return Cta(0, 0, 0, spans), stages, machine
