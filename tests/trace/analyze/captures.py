"""Captures of the simulated SM: what a few records an iteration show of a kernel that each of them makes slower."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from kperf.ir.names import Aliases
from kperf.trace.analyze.decode import decode
from kperf.trace.analyze.timeline import Launch
from kperf.trace.instrument.events import LIFETIME, Rules, read_rules
from kperf.trace.instrument.probes import Places, ProbedKernel, Probes, classes_of
from kperf.trace.instrument.program import Group, Interval, Loop, Mma, Probe, Program, Scope

from .machine import EMPTY, FLOP_PER_CYCLE, FULL, INTERVALS, ISSUES, Kernel, Machine, residents
from .synthetic import encode, recording_of

ITERATION = {
    "consumer": ("wait A full", "issue", "product wait", "arithmetic"),
    "producer": ("wait A empty", "other"),
}
"""What an iteration does, from its anchor on: at place n the n-th begins."""
LINES = {"consumer": 10, "producer": 20}
ALL: Places = ((0, 1, 2, 3), (0, 1))


def role(group: str) -> str:
    return group.split(maxsplit=1)[0]


def program_of(kernel: Kernel, places: Places) -> tuple[Program, dict[Probe, Probe]]:
    """The program with pairs at these places, each with a scope of its own; its probes -> those of the finest one."""
    names = [*(f"consumer {n}" for n in range(kernel.consumers)), "producer"]
    groups = [Group(name, name, 4 * place, 4, ISSUES[name != "producer"]) for place, name in enumerate(names)]
    scopes: list[Scope] = []
    table: dict[tuple[Probe, Probe], Interval] = {}
    probes: dict[Probe, Probe] = {}
    finest = 0
    for name in names:
        iteration, chosen = ITERATION[role(name)], places[name == "producer"]
        life = Scope(len(scopes), LIFETIME + name, name, ())
        scopes.append(life)
        finest += 1
        mine: list[tuple[int, Probe]] = []
        for first, second in zip(chosen[::2], chosen[1::2], strict=True):
            scope = Scope(len(scopes), f"{iteration[first]} to {iteration[second]}", name, (LINES[role(name)],))
            scopes.append(scope)
            mine += [(first, (scope.number, True)), (second, (scope.number, False))]
        if mine:
            table[(life.number, True), mine[0][1]] = Interval(name)
            table[mine[-1][1], (life.number, False)] = Interval(name)
        for (first, probe), (second, following) in pairwise([*mine, *mine[:1]]):
            table[probe, following] = _between(kernel, name, first, second)
        probes |= {probe: (finest + place // 2, place % 2 == 0) for place, probe in mine}
        finest += len(iteration) // 2
    mma = Mma("A @ B", kernel.mma * FLOP_PER_CYCLE, "bf16")
    loops = {10: Loop(10, (mma,), ()), 20: Loop(20, (), ("A",))}
    stages = {EMPTY: kernel.stages, FULL: kernel.stages}
    return Program("made", groups, 4 * len(groups), scopes, table, stages, loops), probes


def _between(kernel: Kernel, group: str, first: int, second: int) -> Interval:
    iteration = ITERATION[role(group)]
    names = iteration[first:second] if second > first else iteration[first:] + iteration[:second]
    parts = [INTERVALS[name] for name in names]
    made: dict[str, tuple] = {}
    for _, options in parts:
        made |= options
    if "issue" in names:
        issued = Mma("A @ B", kernel.mma * FLOP_PER_CYCLE, "bf16")
        made["queue"] = (issued, *made.get("queue", ()))
    return Interval(group, " + ".join(names), parts[0][0], **made)


def all_probes_of(kernel: Kernel) -> Probes:
    """Every probe of the simulated kernel."""
    program, _ = program_of(kernel, ALL)
    straight = {scope.number for scope in program.scopes if scope.loops}
    return Probes("", program, classes_of(program, straight), rules())


def rules() -> Rules:
    return read_rules().model_copy(update={"aliases": Aliases()})


def capture(
    kernel: Kernel, places: Places, cost: int, lates: Sequence[int] = (0, 7, 13)
) -> tuple[ProbedKernel, Launch]:
    """A launch with records at these places, each of `cost` cycles; the second consumer begins later in each CTA."""
    program, probes = program_of(kernel, places)
    machines = [Machine(replace(kernel, late=kernel.late + late), *recorded(places, cost)).run() for late in lates]
    ctas = [_records(machine, program, places) for machine in machines]
    recording = recording_of(program, bytes_per_warp=16384, memory="global")
    launch = Launch(decode(encode(ctas, recording, sms=1), recording), program, recording.warps)
    return ProbedKernel(places, "", program, probes), launch


def recorded(places: Places, cost: int) -> tuple[frozenset[tuple[str, str]], int]:
    """After which intervals a warp writes an event, and what that costs."""
    iterations = zip(ITERATION.items(), places, strict=True)
    return frozenset((name, iteration[place - 1]) for (name, iteration), chosen in iterations for place in chosen), cost


def launch_of_residents(kernel: Kernel, starts: Sequence[int]) -> tuple[Launch, list[Machine]]:
    """A launch with all events, at no cost, of CTAs that share one SM from these cycles on."""
    program, _ = program_of(kernel, ALL)
    machines = residents(kernel, starts)
    recording = recording_of(program, bytes_per_warp=16384, memory="global")
    buffer = encode([_records(machine, program, ALL) for machine in machines], recording, sms=1, timed=True)
    return Launch(decode(buffer, recording), program, recording.warps), machines


def _records(machine: Machine, program: Program, places: Places) -> list[list[tuple[int, bool, int]]]:
    ctas = []
    for group, ended in machine.records.items():
        iteration, chosen = ITERATION[role(group)], places[group == "producer"]
        start = machine.begins(group)
        life, *inner = [scope.number for scope in program.scopes if scope.group == group]
        mine = [(life, True, start)]
        # The producer's first iteration begins with what it does between two.
        clocks = [("", start), *ended] if group.startswith("consumer") else ended
        at = 0
        for place, (_, clock) in enumerate(clocks):
            if place % len(iteration) in chosen and place < len(clocks) // len(iteration) * len(iteration):
                scope = inner[at // 2 % len(inner)]
                mine.append((scope, at % 2 == 0, clock))
                at += 1
        mine.append((life, False, ended[-1][1] + 50))
        ctas.append(mine)
    return ctas
