"""Buffers in shared memory that a loop overwrites while an MMA may read them, or reads before they are filled.

A wgmma reads its operands from shared memory after its warps have gone on, until they wait for it; no barrier among
threads waits for it. What fills its buffer before that wait may be what it reads. Triton's pipeliner gives a tile that
both a wgmma and registers read a buffer too few (triton-lang/triton#6691; 3.6.0 to 3.9.0 do), and in Gluon buffers and
waits are the author's. A copy by cp.async, too, goes on until a wait for its group.

A loop is run here with its integers alone: in each iteration they say which buffer an operation means.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from kperf.ir.dataflow import ASYNC_COPY, ASYNC_WAIT, COPY, DOT, DOT_WAIT, pendings
from kperf.ir.ttgir import Module, Operation, Region
from kperf.ir.values import Values, apply, constant, loop_arguments, loop_begins, passed

_VIEWS = ("ttg.memdesc_trans", "ttg.memdesc_reinterpret", "ttg.memdesc_reshape")
"""Their operand is the buffer that they show. Parts of a buffer are not followed: another part may be filled."""
_ALLOCATION, _ONE = "ttg.local_alloc", "ttg.memdesc_index"
_FILLED = {ASYNC_COPY: 1, "ttg.local_store": 1, COPY: -3}
"""What fills a buffer, and the buffer's place among its operands: TMA's are followed by a barrier and a predicate."""
_READ = {DOT: 2, "ttg.local_load": 1}
"""What reads buffers, and how many of its operands they may be."""
_COMMIT = "ttg.async_commit_group"
_LOOPS = ("scf.for", "scf.while")
_ITERATIONS = 24
"""That are run: a pipeline of eight buffers has filled each of them three times by then."""
_STEP = 3
"""Place of the step among the operands of `scf.for`."""


@dataclass(frozen=True)
class Buffer:
    """One buffer of an allocation; the only one has number 0."""

    allocation: int
    number: int = 0


@dataclass(frozen=True)
class Race:
    """`early` uses a buffer before `unfinished` is over: it fills what an MMA reads, or reads what a copy fills.

    allocation: its line. buffers: how many it has. later: iterations from that of `unfinished` to that of `early`.
    """

    unfinished: Operation
    early: Operation
    allocation: int
    buffers: int
    later: int


@dataclass(frozen=True)
class _Use:
    """An MMA in flight and the buffers that it reads, or a group of copies and those that they fill."""

    iteration: int
    operations: dict[Buffer, Operation]


Known = int | Buffer | None


def races(module: Module) -> Iterator[Race]:
    """Each pair of operations once, in the order of the loops; of copies those in groups (cp.async)."""
    values = Values(module)
    for loop in module.walk():
        if loop.name == "scf.for" and any(op.name in (DOT, ASYNC_COPY) for op in loop.walk()):
            yield from _Loop(values, loop).run()


class _Loop:
    def __init__(self, values: Values, loop: Operation) -> None:
        self._values, self._loop = values, loop
        self._known: dict[str, Known] = {}
        self._mmas: list[_Use] = []
        self._groups: list[_Use] = []
        self._copies: dict[Buffer, Operation] = {}
        self._buffers: dict[int, int] = {}
        self._iteration = 0

    def run(self) -> Iterator[Race]:
        """With the integers that constants say; an operation on a buffer that they do not say is passed over."""
        seen = set()
        body = self._loop.regions[0]
        induction, *carried = loop_arguments(self._loop)
        lower, *begins = loop_begins(self._loop)
        given = [self._of(self._loop.parent, name) for name in begins]
        first, step = (self._of(self._loop.parent, name) for name in (lower, self._loop.operands[_STEP]))
        for self._iteration in range(_ITERATIONS):
            self._known = dict(zip(carried, given, strict=True))
            if isinstance(first, int) and isinstance(step, int):
                self._known[induction] = first + step * self._iteration
            else:
                self._known[induction] = None
            for race in self._through(body, always=True):
                if (race.unfinished.line, race.early.line) not in seen:
                    seen.add((race.unfinished.line, race.early.line))
                    yield race
            given = [self._of(body, name) for name in passed(body.operations[-1])]

    def _through(self, region: Region, *, always: bool) -> Iterator[Race]:
        """`always`: it is not a branch that may be passed by; a wait in such a branch ends nothing."""
        for op in region.operations:
            if op.name == "scf.if":
                self._known |= dict.fromkeys(op.results)
                taken = self._of(region, op.operands[0])
                for place, way in enumerate(op.regions):
                    if taken is None or bool(taken) == (place == 0):
                        yield from self._through(way, always=always and taken is not None)
            elif op.name in _LOOPS:  # what it waits for is not followed
                self._known |= dict.fromkeys(op.results)
                self._mmas.clear()
                self._groups.clear()
            else:
                yield from self._races(op)
                self._use(op, always=always)
                self._make(op)

    def _races(self, op: Operation) -> Iterator[Race]:
        """Of what fills a buffer with MMAs in flight, and of what reads one with copies on their way."""
        filled = self._filled(op)
        reads = self._read(op)
        for use, buffers in ((self._mmas, [filled] if filled else []), (self._groups, reads)):
            for one in use:
                for buffer in buffers:
                    if buffer in one.operations:
                        place = buffer.allocation
                        later = self._iteration - one.iteration
                        yield Race(one.operations[buffer], op, place, self._buffers.get(place, 1), later)

    def _use(self, op: Operation, *, always: bool) -> None:
        """Begin what goes on after the operation, and end what it waits for."""
        if op.name == DOT and "isAsync = true" in op.rest:
            self._mmas.append(_Use(self._iteration, dict.fromkeys(self._read(op), op)))
        elif op.name == DOT_WAIT and always:
            self._mmas = self._mmas[max(len(self._mmas) - pendings(op), 0) :]
        elif op.name == ASYNC_COPY and (filled := self._filled(op)):
            self._copies[filled] = op
        elif op.name == _COMMIT:
            self._groups.append(_Use(self._iteration, self._copies))
            self._copies = {}
        elif op.name == ASYNC_WAIT and always:
            left = int(op.rest.partition("num = ")[2].partition(" ")[0])
            self._groups = self._groups[max(len(self._groups) - left, 0) :]

    def _filled(self, op: Operation) -> Buffer | None:
        if op.name == _ALLOCATION and op.operands:
            return Buffer(op.line)
        if op.name not in _FILLED or (op.name == COPY and self._of(op.parent, op.operands[-1]) == 0):
            return None
        filled = self._of(op.parent, op.operands[_FILLED[op.name]])
        return filled if isinstance(filled, Buffer) else None

    def _read(self, op: Operation) -> list[Buffer]:
        """Its operands in shared memory."""
        read = [self._of(op.parent, name) for name in op.operands[: _READ.get(op.name, 0)]]
        return [buffer for buffer in read if isinstance(buffer, Buffer)]

    def _make(self, op: Operation) -> None:
        """Give the results of an operation, so far as they are integers or buffers."""
        self._known |= dict.fromkeys(op.results)
        for result in op.results[:1]:
            if op.name in _VIEWS:
                self._known[result] = self._of(op.parent, op.operands[0])
            elif op.name == _ONE:
                self._known[result] = self._one(op)
            elif op.name == _ALLOCATION:
                self._known[result] = Buffer(op.line)
            elif op.name == DOT_WAIT:  # its results are its operands
                names = (
                    [result] if len(op.operands) == 1 else [f"{result}#{place}" for place in range(len(op.operands))]
                )
                self._known |= zip(names, (self._of(op.parent, name) for name in op.operands), strict=True)
            elif op.name.startswith("arith.") and "tensor<" not in op.rest:
                self._known[result] = self._computed(op)

    def _one(self, view: Operation) -> Buffer | None:
        """The buffer that a number chooses of an allocation's."""
        whole, number = (self._of(view.parent, name) for name in view.operands)
        if not isinstance(whole, Buffer) or not isinstance(number, int):
            return None
        self._buffers[whole.allocation] = int(view.rest.partition("memdesc<")[2].partition("x")[0])
        return Buffer(whole.allocation, number)

    def _computed(self, op: Operation) -> int | None:
        if op.name == "arith.constant":
            value = constant(op)
            return None if value is None else int(value.numbers)
        known = [self._of(op.parent, name) for name in op.operands]
        numbers = [np.array(number, dtype=np.int64) for number in known if isinstance(number, int)]
        result = apply(op, numbers) if len(numbers) == len(known) else None
        return None if result is None else int(result)

    def _of(self, region: Region | None, name: str) -> Known:
        """What a name stands for: in this iteration, or before the loop, where constants say it."""
        if name in self._known or name.partition("#")[0] in self._known:
            return self._known.get(name)
        made = self._values.made(region, name)
        if made is not None and made.name == _ALLOCATION:
            return Buffer(made.line)
        if made is not None and made.name in _VIEWS:
            return self._of(made.parent, made.operands[0])
        if made is not None and made.name == _ONE:
            return self._one(made)
        value = self._values.of(region, name)
        is_constant = value is not None and not (value.numbers.ndim or value.arguments or value.loaded or value.program)
        return int(value.numbers) if value is not None and is_constant else None
