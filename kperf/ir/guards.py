"""What the barriers of a TTGIR module guard, and who waits there for whom.

A barrier is called by what is loaded under it, or by what the warp group that loads waits for before it loads.
"""

import re

from kperf.ir.barriers import HARDWARE, Barriers
from kperf.ir.names import Names
from kperf.ir.operations import ARRIVE, ASYNC_WAIT, COMMIT, COPY, MMAS, WAIT, named_barrier, signals, waits
from kperf.ir.sources import Sources, Value
from kperf.ir.ttgir import Module, Operation, Region

TENSOR_MEMORY = {"ttng.tmem_load": "empty", "ttng.tmem_store": "full"}
"""Who arrives at a barrier after one of these says that the buffer in tensor memory is read or written."""


class Guards:
    """Why the warp groups of a module wait.

    meetings: named barriers at which warp groups wait for each other. arriving: ring of mbarriers -> the MMAs at whose
    end the tensor core arrives there. guarded: ring of barriers -> (what it guards, full or empty).
    """

    def __init__(self, module: Module, sources: Sources, names: Names, barriers: Barriers) -> None:
        """Go through each warp group's operations."""
        self._sources, self._names, self._barriers = sources, names, barriers
        self.meetings = self._find_meetings(module)
        self.arriving = self._find_arriving(module)
        self.guarded = self._name_barriers(module)

    def completes(self, operation: Operation) -> bool:
        """Whether it waits for an mbarrier at which the tensor core arrives when MMAs are done, to use their results.

        A group that waits there before it loads waits for an empty buffer.
        """
        if operation.name != WAIT:
            return False
        stage_ring = self._barriers.barrier(operation)
        return stage_ring in self.arriving and stage_ring not in self.guarded and not self._is_free(operation)

    def _is_free(self, wait: Operation) -> bool:
        """Whether a wait for an mbarrier is for the phase before its first, as constants say: it is over at once."""
        return (
            self._barriers.barrier(wait) in self.arriving
            and self._sources.constant(self._sources.operand(wait, 1)) == 1
        )

    def awaited(self, operation: Operation) -> tuple[Value, ...]:
        """The rings for which an operation waits: a barrier's, or the buffers that cp.async fills."""
        if operation.name == ASYNC_WAIT:
            return tuple(dict.fromkeys(self._barriers.filled(copy) for copy in self._barriers.copies(operation)))
        if operation.name == WAIT and self._is_free(operation):
            return ()
        return (self._barriers.barrier(operation),) if waits(operation) else ()

    def stages(self, operation: Operation) -> int:
        """How many waits for the stage ring of an operation are over before anyone has arrived there.

        A wait for an mbarrier's phase before the first is over at once; a named barrier has no such wait, nor
        has who waits for an MMA's result or operand, beginning with the first phase.
        """
        stage_ring = self._barriers.of(operation)[0][0]
        maker = self._sources.maker(stage_ring)
        phased = operation.name == WAIT and bool(self.arriving)
        if stage_ring[0] == HARDWARE or (phased and self._sources.first(self._sources.operand(operation, 1)) == 0):
            return 0
        match = (
            re.search(r"memdesc<(\d+)x\d+xi64", maker.rest if maker else "")
            if stage_ring in self._barriers.shared
            else None
        )
        return int(match.group(1)) if match else 1

    def _find_meetings(self, module: Module) -> set[Value]:
        """Named barriers at which warp groups wait for each other: several do, and none arrives and goes on."""
        waiting: dict[Value, set[str]] = {}
        for group in module.warp_groups():
            for op in group.region.walk():
                if named_barrier(op) and waits(op):
                    waiting.setdefault(self._barriers.barrier(op), set()).add(group.name)
        signalled = {self._barriers.barrier(op) for op in self._sources.operations if signals(op)}
        return {stage_ring for stage_ring, groups in waiting.items() if len(groups) > 1} - signalled

    def _find_arriving(self, module: Module) -> dict[Value, dict[str, None]]:
        """Ring of mbarriers -> the MMAs at whose end the tensor core arrives there.

        A commit arrives for all MMAs that its warp group issued before.
        """
        arriving: dict[Value, dict[str, None]] = {}
        for group in module.warp_groups():
            issued: dict[str, None] = {}
            for op in group.region.walk():
                if op.name in MMAS:
                    issued[self._names.mma(op)] = None
                for stage_ring in self._barriers.arrives(op):
                    mmas = issued if op.name == COMMIT else [self._names.mma(op)]
                    arriving.setdefault(stage_ring, {}).update(dict.fromkeys(mmas))
        return arriving

    def _name_barriers(self, module: Module) -> dict[Value, tuple[str, str]]:
        """Ring of barriers -> (what it guards, full or empty).

        A wait before a load guards its buffer where another warp group waits for what is loaded: a group that loads for
        itself knows when it has read the buffer. A meeting guards nothing.
        """
        loaded: dict[tuple[Value, str], dict[str, None]] = {}
        for op in self._sources.named(COPY):
            loaded.setdefault((self._barriers.barrier(op), "full"), {})[self._names.source(op)] = None
        full = {stage_ring for stage_ring, _ in loaded}
        groups = module.warp_groups()
        waiting = {
            (self._barriers.barrier(op), n) for n, group in enumerate(groups) for op in group.region.walk() if waits(op)
        }
        for number, group in enumerate(groups):
            others = {stage_ring for stage_ring, n in waiting if n != number}
            awaited: list[Value] = []
            used = False
            for op in group.region.walk():
                if op.name == COPY and self._barriers.barrier(op) in others:
                    used = True
                    for stage_ring in awaited:
                        loaded.setdefault((stage_ring, "empty"), {})[self._names.source(op)] = None
                elif waits(op) and self._barriers.barrier(op) not in full | self.meetings:
                    awaited = [*([] if used else awaited), self._barriers.barrier(op)]
                    used = False
            self._name_tensor_memory(group.region, loaded)
        return {stage_ring: ("+".join(buffers), state) for (stage_ring, state), buffers in loaded.items()}

    def _name_tensor_memory(self, region: Region, named: dict[tuple[Value, str], dict[str, None]]) -> None:
        """A barrier at which a group arrives after it read or wrote tensor memory guards that, if nothing else."""
        last: Operation | None = None
        for op in region.walk():
            if op.name in TENSOR_MEMORY:
                last = op
            elif op.name == ARRIVE and last is not None:
                stage_ring, state = self._barriers.barrier(op), TENSOR_MEMORY[last.name]
                if not any((stage_ring, other) in named for other in ("full", "empty") if other != state):
                    named.setdefault((stage_ring, state), {})[self._names.accumulated(last)] = None
                last = None
