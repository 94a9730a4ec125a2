"""What the values of a TTGIR module stand for: where a load comes from, which barrier says that it is there."""

import re

from kperf.ir.barriers import Barriers
from kperf.ir.guards import TENSOR_MEMORY, Guards
from kperf.ir.loads import Loads
from kperf.ir.names import Aliases, Names
from kperf.ir.operations import ARRIVE, ASSEMBLY, ASYNC_WAIT, COMMIT, DOT_WAIT, MMAS, WAIT, signals, waits
from kperf.ir.queues import Queues
from kperf.ir.sources import Sources
from kperf.ir.ttgir import Module, Operation


class Dataflow:
    """All that is known of a module's values; `fields(operation)` fills the templates of the region rules."""

    def __init__(self, module: Module, aliases: Aliases | None = None) -> None:
        """Read a module; `aliases`: words of a trade for its names."""
        sources = Sources(module)
        self.names = Names(sources, aliases)
        self.barriers = Barriers(sources)
        self.guards = Guards(module, sources, self.names, self.barriers)
        self.queues = Queues(module, self.names, self.barriers, self.guards)
        self.loads = Loads(sources, self.names)

    def fields(self, operation: Operation) -> dict[str, str]:
        """`operation`, and `product`, `buffer` and `state` as far as they apply."""
        name = operation.name
        fields = {"operation": name.rpartition(".")[2]}
        if name in MMAS:
            fields["product"] = self.names.mma(operation)
        elif self.guards.completes(operation):
            fields["product"] = "+".join(self.guards.arriving[self.barriers.barrier(operation)]) or "tcgen05"
        elif name == COMMIT:
            stage_rings = self.barriers.arrives(operation)
            fields["product"] = "+".join(mma for stage_ring in stage_rings for mma in self.guards.arriving[stage_ring])
        elif name in TENSOR_MEMORY:
            fields["buffer"] = self.names.accumulated(operation)
        elif name == DOT_WAIT:
            fields["product"] = self.queues.completed(operation) or "wgmma"
        elif name == ASYNC_WAIT:
            fields["buffer"] = (
                "+".join(dict.fromkeys(map(self.names.source, self.barriers.copies(operation)))) or "cp.async"
            )
        elif waits(operation) or signals(operation):
            stage_ring = self.barriers.barrier(operation)
            nameless = "barrier" if name in (WAIT, ARRIVE) else "all" if stage_ring in self.guards.meetings else "turn"
            unknown = "+".join(self.guards.arriving.get(stage_ring, ())) or nameless
            fields["buffer"], fields["state"] = self.guards.guarded.get(stage_ring, (unknown, ""))
        elif name == ASSEMBLY:
            fields["buffer"] = "turn"  # a named barrier written in another way
        elif name == "tt.extern_elementwise":
            symbol = re.search(r'symbol = "(?:__nv_)?(\w+)"', operation.rest)
            fields["operation"] = symbol.group(1) if symbol else "library function"
        elif name == "tt.atomic_rmw":
            kind = operation.rest.partition(",")[0].strip()
            fields |= {
                "operation": {"fadd": "add", "exch": "exchange"}.get(kind, kind),
                "buffer": self.names.source(operation),
            }
        elif operation.operands:
            fields["buffer"] = self.names.source(operation)
        return fields
