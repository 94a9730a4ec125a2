"""Which asynchronous MMAs of a TTGIR module are in flight where a warp waits for some."""

from kperf.arch import completion
from kperf.ir.barriers import Barriers
from kperf.ir.guards import Guards
from kperf.ir.names import Names
from kperf.ir.operations import COMMIT, DOT, DOT_WAIT, MMAS, pendings
from kperf.ir.sources import Value, is_closed
from kperf.ir.ttgir import Module, Operation, control_flow

_MOST_IN_FLIGHT = 8
"""MMAs in flight that are kept apart; a schedule has at most a few."""

_Queue = tuple[tuple[str, tuple[Value, ...]], ...]
"""Asynchronous MMAs in flight, and the stage rings at which the tensor core arrives when they are done."""


class Queues:
    """The MMAs that waits complete, and how many they leave in flight."""

    def __init__(self, module: Module, names: Names, barriers: Barriers, guards: Guards) -> None:
        """Follow every way that a warp can go."""
        self._names, self._barriers, self._guards = names, barriers, guards
        self._completed, self._left = self._follow_queues(module)

    def completed(self, wait: Operation) -> str:
        """The MMAs that a wait for the queue completes; empty if none is known."""
        return self._completed.get(id(wait), "")

    def leaves(self, wait: Operation) -> int | None:
        """How many MMAs of its own warp group a wait for an mbarrier leaves in flight; None if it waits for none."""
        return self._left.get(id(wait))

    def _follow_queues(self, module: Module) -> tuple[dict[int, str], dict[int, int]]:
        """Wait -> the MMAs that it completes, along all ways on which a warp can come to it.

        Wait for an mbarrier -> how many MMAs of its own warp group it leaves in flight, at most.
        """
        completed: dict[int, dict[str, None]] = {}
        left: dict[int, int] = {}
        for group in module.warp_groups():
            region = group.region if is_closed(group.region) else module.function.regions[0]
            graph = control_flow(region)
            own = {stage_ring for op in group.region.walk() for stage_ring in self._barriers.arrives(op)}
            reached: dict[int, set[_Queue]] = {}
            todo: list[tuple[Operation, _Queue]] = [(region.operations[0], ())] if region.operations else []
            while todo:
                op, queue = todo.pop()
                if queue in reached.setdefault(op.line, set()):
                    continue
                reached[op.line].add(queue)
                if op.name in MMAS and completion(op.name) != "sync":
                    asynchronous = op.name != DOT or "isAsync = true" in op.rest
                    issued = self._names.mma(op), self._barriers.arrives(op)
                    queue = (*queue, issued)[-_MOST_IN_FLIGHT:] if asynchronous else ()
                elif op.name == COMMIT and queue:
                    mma, stage_rings = queue[-1]
                    queue = (
                        *queue[:-1],
                        (mma, tuple(dict.fromkeys((*stage_rings, *self._barriers.arrives(op))))),
                    )  # each once: it loops
                elif op.name == DOT_WAIT:
                    done = max(len(queue) - pendings(op), 0)
                    completed.setdefault(id(op), {}).update(dict.fromkeys(mma for mma, _ in queue[:done]))
                    queue = queue[done:]
                elif self._guards.completes(op):
                    stage_ring = self._barriers.barrier(op)
                    done = next(
                        (place for place, (_, stage_rings) in enumerate(queue, 1) if stage_ring in stage_rings), 0
                    )
                    queue = queue[done:]
                    if stage_ring in own:
                        left[id(op)] = max(len(queue), left.get(id(op), 0))
                todo += [(following, queue) for following in reversed(graph.get(op.line, ()))]
        return {key: "+".join(mmas) for key, mmas in completed.items()}, left
