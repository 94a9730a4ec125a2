"""The probes of an iteration: where events of a main loop are taken, and the instrumented kernel with a few of them.

A *body* is a main loop of a warp group: of its loops those that issue most and have none such inside. Which of several
runs is not known here, as where one goes on for tiles that overflowed: all are bodies. Bodies with the same regions in
the same order, as two consumers have, form a *class* and get the same probes. The probe before the first
region is the iteration's *anchor*. Proton wants events in pairs, so a kernel with a few probes has pairs from one of
them to the next, whatever regions these probes belong to.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kperf.errors import UsageError
from kperf.ir.ttgir import Module, Operation
from kperf.trace.instrument.events import LIFETIME, Rules, instrument
from kperf.trace.instrument.program import Interval, Probe, Program, Scope, read_program

_RECORD = re.compile(r'(\s*)proton\.record \w+ "[^"]*"')
ANCHOR = 0
"""The place of the anchor in every class."""

Places = tuple[tuple[int, ...], ...]
"""Of each class the places that a pass records, in order: an even number of them, or none."""


@dataclass(frozen=True)
class Body:
    """The probes of one main loop, in the order in which an iteration takes events there."""

    group: str
    loop: int
    probes: tuple[Probe, ...]


@dataclass(frozen=True)
class BodyClass:
    """Bodies with the same regions; a *place* is an index into the probes of each.

    `names`: what each place is called. `same`: a place -> an earlier one from which nothing that is recorded lies
    between; the number of places stands for the anchor of the next iteration.
    """

    bodies: tuple[Body, ...]
    names: tuple[str, ...]
    same: Mapping[int, int]

    @property
    def measured(self) -> tuple[int, ...]:
        """The places to be measured: all but the anchor and those that are another's; at least one."""
        places = range(ANCHOR + 1, len(self.names))
        return tuple(place for place in places if place not in self.same) or tuple(places)[:1]


@dataclass(frozen=True)
class Probes:
    """Every probe of a kernel: `text` and `program` are those of its finest kernel, to which the probes belong."""

    text: str
    program: Program
    classes: tuple[BodyClass, ...]
    rules: Rules

    @property
    def least_cycles(self) -> float:
        """What an iteration takes at least: all groups' MMAs at their types' peak rates, each in its least body."""
        least: dict[str, float] = {}
        for body in (body for of in self.classes for body in of.bodies):
            cycles = sum(map(self.program.cycles, self.program.loops[body.loop].mmas))
            least[body.group] = min(cycles, least.get(body.group, cycles))
        return sum(least.values())

    def named(self, places: Places) -> list[str]:
        """What a pass records in an iteration besides anchors, in words."""
        chosen = zip(self.classes, places, strict=True)
        names = [
            f"{', '.join(dict.fromkeys(body.group for body in of.bodies))}: {of.names[place]}"
            for of, recorded in chosen
            for place in recorded
            if place != ANCHOR
        ]
        return list(dict.fromkeys(names))


@dataclass(frozen=True)
class ProbedKernel:
    """The instrumented kernel with a few probes. `probes`: its own of an iteration -> those of `Probes.program`."""

    places: Places
    text: str
    program: Program
    probes: Mapping[Probe, Probe]


def find_probes(original: str, rules: Rules, regions: Sequence[str] = ("*",)) -> Probes:
    """The probes of the TTGIR `original`, of the regions whose names fit.

    Raises `UsageError` if it cannot be recorded, or if no loop of it issues MMAs.
    """
    text = instrument(original, regions=regions, rules=rules)
    program = read_program(text, rules)
    straight = {probe[0] for op, probe in _records(text) if _every_iteration(op, program.scopes[probe[0]])}
    return Probes(text, program, classes_of(program, straight), rules)


def classes_of(program: Program, straight: set[int]) -> tuple[BodyClass, ...]:
    """The bodies of a program by what they record; `straight`: the scopes that every iteration of their loop runs.

    Raises `UsageError` if none of them issues MMAs.
    """
    by_names: dict[tuple[str, ...], list[Body]] = {}
    for group in dict.fromkeys(scope.group for scope in program.scopes):
        scopes = [s for s in program.scopes if s.group == group and s.loop and s.number in straight]
        for loop in _main_loops(scopes, program):
            of_loop = [scope for scope in scopes if scope.loop == loop]
            probes = tuple((scope.number, start) for scope in of_loop for start in (True, False))
            by_names.setdefault(tuple(scope.name for scope in of_loop), []).append(Body(group, loop, probes))
    if not any("MMAs" in program.group(body.group).issues for bodies in by_names.values() for body in bodies):
        raise UsageError("it has no loop that issues matrix products")
    return tuple(_class_of(program, bodies) for bodies in by_names.values())


def _main_loops(scopes: Sequence[Scope], program: Program) -> list[int]:
    """Of the loops of these scopes those that issue most, MMAs before loads, without those around another of them."""
    around = {scope.loop: scope.loops[:-1] for scope in scopes}
    weights = {line: 2 if program.loops[line].mmas else 1 if program.loops[line].loads else 0 for line in around}
    most = [line for line, weight in weights.items() if weight == max(weights.values())]
    return [line for line in most if not any(line in around[other] for other in most)]


def _every_iteration(record: Operation, scope: Scope) -> bool:
    """Whether a record stands in its loop itself, and in no branch there."""
    owner = record.parent.owner if record.parent else None
    return owner is not None and bool(scope.loop) and owner.line == scope.loop


def _class_of(program: Program, bodies: list[Body]) -> BodyClass:
    probes = bodies[0].probes
    names = [f"{'start' if start else 'end'} of {program.scopes[scope].name}" for scope, start in probes]
    same: dict[int, int] = {}
    for place, (probe, following) in enumerate(pairwise([*probes, probes[ANCHOR]])):
        if between(program, probe, following).kind != "other":
            continue
        if place + 1 == len(probes):
            same[place] = len(probes)
        else:
            same[place + 1] = same.get(place, place)
    return BodyClass(tuple(bodies), tuple(names), same)


def between(program: Program, probe: Probe, following: Probe) -> Interval:
    """What an iteration does between two records that follow each other in it.

    Where each way from one to the other has records of its own, as both branches of an `if`, that is the branches.
    """
    interval = program.intervals.get((probe, following))
    return interval or Interval(program.scopes[probe[0]].group, "branches", "arithmetic")


def probed_kernel(all_probes: Probes, places: Places) -> ProbedKernel:
    """The instrumented kernel that records these places of each class, and lifetimes."""
    kept = {
        body.probes[place]: of.names[place]
        for of, chosen in zip(all_probes.classes, places, strict=True)
        for body in of.bodies
        for place in chosen
    }
    lines: list[str | None] = list(all_probes.text.splitlines(keepends=True))
    start: tuple[int, Probe] | None = None
    pairs: list[tuple[Probe, Probe]] = []
    for op, probe in _records(all_probes.text):
        if all_probes.program.scopes[probe[0]].name.startswith(LIFETIME):
            continue
        if probe not in kept:
            lines[op.line] = None
        elif start is None:
            start = op.line, probe
        else:
            line, first = start
            name = f"{kept[first]} to {kept[probe]}"
            for at, word in ((line, "start"), (op.line, "end")):
                lines[at] = _RECORD.sub(rf'\g<1>proton.record {word} "{name}"', lines[at] or "")
            pairs.append((first, probe))
            start = None
    text = "".join(line for line in lines if line is not None)
    program = read_program(text, all_probes.rules)
    inner = [scope.number for scope in program.scopes if not scope.name.startswith(LIFETIME)]
    probes = {}
    for number, (first, last) in zip(inner, pairs, strict=True):
        probes[number, True], probes[number, False] = first, last
    return ProbedKernel(places, text, program, probes)


def _records(text: str) -> Iterator[tuple[Operation, Probe]]:
    """The records of a text and their probes: pairs are numbered in the order of the text."""
    opened: dict[tuple[int, str], int] = {}
    number = 0
    for op in Module(text).walk():
        if op.name != "proton.record":
            continue
        word, name = op.rest.strip().split(" ", 1)
        key = id(op.parent), name
        if word == "start":
            opened[key] = number
            number += 1
            yield op, (opened[key], True)
        else:
            yield op, (opened.pop(key), False)
