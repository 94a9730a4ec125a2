"""Which barriers the operations of a TTGIR module use: mbarriers, named barriers, and buffers that cp.async fills."""

import re
from collections.abc import Iterator

from kperf.arch import completion
from kperf.ir.operations import ARRIVE, ASYNC_COPY, COMMIT, COPY, WAIT, named_barrier
from kperf.ir.sources import Sources, Value
from kperf.ir.ttgir import Operation

HARDWARE = -2
"""In the place of a region's line: a named barrier is the hardware's."""


class Barriers:
    """The stage rings of a module, by the operations that wait and arrive there.

    shared: those of which somebody computes which barrier of it is meant.
    """

    def __init__(self, sources: Sources) -> None:
        """Find the rings that are shared."""
        self._sources = sources
        self._bases = self._find_bases()
        barriers = [barrier for op in sources.operations for barrier in self.of(op)]
        self.shared = {stage_ring for stage_ring, number in barriers if number is None}

    def _find_bases(self) -> dict[str, int]:
        """How many threads meet at named barriers whose number is computed -> the least that is added for a number."""
        by_threads: dict[str, list[int]] = {}
        for op in self._sources.operations:
            if named := named_barrier(op):
                number = self._sources.resolve(op.parent, named[3])
                if self._sources.constant(number) is None:
                    by_threads.setdefault(named[2], []).append(self._base(number))
        return {threads: min(bases) for threads, bases in by_threads.items()}

    def _base(self, number: Value) -> int:
        """The constant that is added to something for a number; 0 if none is."""
        op = self._sources.maker(self._sources.root(number))
        if op is None or op.name != "arith.addi":
            return 0
        added = (self._sources.constant(self._sources.operand(op, index)) for index in (0, 1))
        return next((constant for constant in added if constant is not None), 0)

    def of(self, operation: Operation) -> list[tuple[Value, int | None]]:
        """The barriers that an operation waits for or arrives at, or has arrived at when it is done.

        Each is a stage ring, and which of it; None if that is computed. Of named ones those where as many threads meet
        are a ring from the least number on that is computed.
        """
        if named := named_barrier(operation):
            number, threads = self._sources.constant(self._sources.resolve(operation.parent, named[3])), named[2]
            base = self._bases.get(threads)
            computed = base is not None and (number is None or number >= base)
            return [((HARDWARE, f"{threads} from {base}" if computed else threads), number)]
        values = []
        if operation.name in (WAIT, ARRIVE, COMMIT, COPY):
            values = [self._sources.operand(operation, -2 if operation.name == COPY else 0)]
        elif completion(operation.name) == "tcgen05":
            head, accumulator = operation.rest.split(" : ")[0], operation.operands[2]
            names = re.findall(r"(%[\w$.#-]+)\[%", head)
            values = [self._sources.resolve(operation.parent, name) for name in names if name != accumulator]
        return [(self._sources.root(value), self._number(value)) for value in values]

    def _number(self, barrier: Value) -> int | None:
        while True:
            op = self._sources.maker(barrier)
            if len(self._sources.passed_as.get(barrier, ())) == 1:
                barrier = self._sources.passed_as[barrier][0]
            elif op is not None and op.name == "ttg.memdesc_index":
                return self._sources.constant(self._sources.operand(op, 1))
            else:
                return None

    def barrier(self, operation: Operation) -> Value:
        """The stage ring that a wait, an arrive or a load uses; one of them, if nobody computes which."""
        return self._one_of(*self.of(operation)[0])

    def _one_of(self, stage_ring: Value, number: int | None) -> Value:
        return stage_ring if stage_ring in self.shared else (stage_ring[0], f"{stage_ring[1]}[{number}]")

    def arrives(self, operation: Operation) -> tuple[Value, ...]:
        """The stage rings at which the tensor core arrives when an MMA, or all before a commit, is done."""
        if operation.name != COMMIT and completion(operation.name) != "tcgen05":
            return ()
        return tuple(self._one_of(*barrier) for barrier in self.of(operation))

    def arrivals(self, operation: Operation) -> tuple[Value, int | None]:
        """The stage ring at which an operation arrives, and at which of its barriers, if that is a constant."""
        return self.barrier(operation), self.of(operation)[0][1]

    def filled(self, load: Operation) -> Value:
        """The stage ring that says that a load has arrived: TMA's barrier, or the buffer itself that cp.async fills."""
        return self.barrier(load) if load.name == COPY else self._sources.root(self._sources.operand(load, 1))

    def copies(self, operation: Operation, visited: set[int] | None = None) -> Iterator[Operation]:
        """The copies behind the tokens of a wait for cp.async, in the order of the tokens, each once.

        Tokens go through groups and other waits, and around loops; `visited`: the lines that were met.
        """
        visited = set() if visited is None else visited
        for index in range(len(operation.operands)):
            for origin in self._sources.origins(self._sources.operand(operation, index)):
                op = self._sources.maker(origin)
                if op is None or op.line in visited:
                    continue
                visited.add(op.line)
                if op.name == ASYNC_COPY:
                    yield op
                else:
                    yield from self.copies(op, visited)
