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

from kperf.ir.arithmetic import apply
from kperf.ir.loops import loop_arguments, loop_begins, passed
from kperf.ir.operations import ASYNC_COPY, ASYNC_WAIT, COPY, DOT, DOT_WAIT, pendings
from kperf.ir.ttgir import Module, Operation, Region
from kperf.ir.values import Value, Values, constant, iterations_of

_VIEWS = ("ttg.memdesc_trans", "ttg.memdesc_reinterpret", "ttg.memdesc_reshape")
"""Their operand is the buffer that they show. Parts of a buffer are not followed: another part may be filled."""
_ALLOCATION, _ONE = "ttg.local_alloc", "ttg.memdesc_index"
_FILLED = {ASYNC_COPY: 1, "ttg.local_store": 1, COPY: -3}
"""What fills a buffer, and the buffer's place among its operands: TMA's are followed by a barrier and a predicate."""
_READ = {DOT: 2, "ttg.local_load": 1}
"""What reads buffers, and how many of its operands they may be."""
_COMMIT = "ttg.async_commit_group"
_TO_BARRIER = "ttng.async_copy_mbarrier_arrive"
"""After copies with cp.async: an mbarrier waits for them, not a wait for their group."""
_LOOPS = ("scf.for", "scf.while")
_ITERATIONS = 24
"""That are run: a pipeline of eight buffers has filled each of them three times by then."""
_STEP = 3
"""Place of the step among the operands of `scf.for`."""


@dataclass(frozen=True)
class Buffer:
    """One buffer of an allocation; the only one has no number."""

    allocation: int
    number: int | None = None


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
    values = _Constants(module)
    for loop in module.walk():
        if loop.name == "scf.for" and any(op.name in (DOT, ASYNC_COPY) for op in loop.walk()):
            yield from _Loop(values, loop).run()


class _Constants(Values):
    """Values that constants say; of what a loop carries the one with which it begins, and none of what it ends with."""

    def _compute(self, key: tuple[int, str], place: int) -> Value | None:
        made = self._made.get(key)
        is_said = key in self._carried or (made is not None and made.name.startswith("arith."))
        return super()._compute(key, place) if is_said else None


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
        iterations = iterations_of(self._values, self._loop, ())
        for self._iteration in range(_ITERATIONS if iterations is None else min(iterations, _ITERATIONS)):
            self._known = dict(zip(carried, given, strict=True))
            if isinstance(first, int) and isinstance(step, int):
                self._known[induction] = first + step * self._iteration
            else:
                self._known[induction] = None
            for race in self._through(body):
                if (race.unfinished.line, race.early.line) not in seen:
                    seen.add((race.unfinished.line, race.early.line))
                    yield race
            given = [self._of(body, name) for name in passed(body.operations[-1])]

    def _through(self, region: Region) -> Iterator[Race]:
        for op in region.operations:
            if op.name == "scf.if":
                self._known |= dict.fromkeys(op.results)
                yield from self._branch(op)
            elif op.name in _LOOPS:  # what it waits for is not followed
                self._known |= dict.fromkeys(op.results)
                self._mmas.clear()
                self._groups.clear()
            else:
                yield from self._races(op)
                self._use(op)
                self._make(op)

    def _branch(self, op: Operation) -> Iterator[Race]:
        """After it goes on what goes on after one of its ways, if it is not known which way is taken."""
        taken = self._of(op.parent, op.operands[0])
        ways = [*op.regions, None][:2]
        mmas, groups = self._mmas, self._groups
        self._mmas, self._groups = [], []
        for way in ways if taken is None else [ways[0 if taken else 1]]:
            others = self._mmas, self._groups
            self._mmas, self._groups = list(mmas), list(groups)
            if way is not None:
                yield from self._through(way)
            self._mmas, self._groups = _either(others[0], self._mmas), _either(others[1], self._groups)

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

    def _use(self, op: Operation) -> None:
        """Begin what goes on after the operation, and end what it waits for."""
        if op.name == DOT and "isAsync = true" in op.rest:
            self._mmas.append(_Use(self._iteration, dict.fromkeys(self._read(op), op)))
        elif op.name == DOT:  # it waits for itself, and so for all before it
            self._mmas = []
        elif op.name == DOT_WAIT:
            self._mmas = self._mmas[max(len(self._mmas) - pendings(op), 0) :]
        elif op.name == ASYNC_COPY and (filled := self._filled(op)):
            self._copies[filled] = op
        elif op.name == _COMMIT:
            self._groups.append(_Use(self._iteration, self._copies))
            self._copies = {}
        elif op.name == _TO_BARRIER:
            self._copies = {}
        elif op.name == ASYNC_WAIT:
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
        names = op.operands[: _READ[op.name]] if op.name in _READ else ()
        read = [self._of(op.parent, name) for name in names]
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
        """The buffer that a number chooses of an allocation's; None where the allocation is cut in two ways."""
        whole, number = (self._of(view.parent, name) for name in view.operands)
        if not isinstance(whole, Buffer) or whole.number is not None or not isinstance(number, int):
            return None
        buffers = int(view.rest.partition("memdesc<")[2].partition("x")[0])
        is_one_way = self._buffers.setdefault(whole.allocation, buffers) == buffers
        return Buffer(whole.allocation, number) if is_one_way else None

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
        return int(value.numbers) if value is not None and not value.numbers.ndim else None


def _either(some: list[_Use], others: list[_Use]) -> list[_Use]:
    """What is in one of two queues."""
    return [*some, *(use for use in others if not any(use is one for one in some))]
