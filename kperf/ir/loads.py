"""What a TTGIR module loads into registers: where it is used first, and what it loads more than once."""

import re
from collections.abc import Iterator

from kperf.ir.loops import BOUNDS
from kperf.ir.names import Names
from kperf.ir.operations import REGISTER_LOADS
from kperf.ir.sources import Sources, Value
from kperf.ir.ttgir import Operation, line_of

_HANDING_ON = {"scf.yield", "scf.condition", "scf.while", "cf.br"}
"""Operations whose operands are what a loop or a branch carries."""


class Loads:
    """The loads into registers of a module."""

    def __init__(self, sources: Sources, names: Names) -> None:
        """Find the first use of each."""
        self._sources, self._names = sources, names
        self._first_uses = self._find_first_uses()

    def uses(self, operation: Operation) -> tuple[str, ...]:
        """What was loaded into registers and is used here for the first time."""
        return tuple(self._first_uses.get(id(operation), ()))

    def _find_first_uses(self) -> dict[int, dict[str, None]]:
        """Operation -> what was loaded into registers and is used there first: where a warp waits for it.

        What a loop or a branch hands on is not used by that: a load for the next iteration is used where that iteration
        uses it.
        """
        loads = {(line_of(op.parent), op.results[0]): op for op in self._sources.named(*REGISTER_LOADS) if op.results}
        uses: dict[int, dict[str, None]] = {}

        def take(op: Operation, value: Value) -> None:
            if load := loads.pop(value, None):
                uses.setdefault(id(op), {})[self._names.source(load)] = None

        read = [
            (op, self._sources.resolve(op.parent, name))
            for op in self._sources.operations
            if op.name not in _HANDING_ON
            for name in (_bounds(op) if op.name == "scf.for" else op.operands)
        ]
        for op, value in read:
            take(op, value)
        for op, value in read if loads else []:
            for origin in self._sources.origins(value):
                take(op, origin)
        return uses

    def rereads(self) -> dict[str, int]:
        """Argument -> at how many places the same addresses of it are loaded, where that is more than one.

        Addresses are the same if they are computed by the same operations from the same values; counters of loops with
        the same bounds count as the same value. Ways of a branch that exclude each other are one place.
        """
        known: dict[Value, str] = {}

        def written(value: Value, inside: tuple[Value, ...] = ()) -> str:
            if value in inside:
                return "itself"
            if value not in known:
                known[value] = text(value, (*inside, value))
            return known[value]

        def text(value: Value, inside: tuple[Value, ...]) -> str:
            op, (_, name) = self._sources.maker(value), value
            if op is not None:
                attributes = re.sub(r"%[\w$.#-]+", "", op.rest.partition(" : ")[0])
                operands = (written(self._sources.operand(op, index), inside) for index in range(len(op.operands)))
                return f"{op.name}{attributes}#{name.partition('#')[2]}({','.join(operands)})"
            if value in self._sources.passed_as:
                return f"carried({','.join(written(source, inside) for source in self._sources.passed_as[value])})"
            if loop := self._sources.counters.get(value):
                bounds = (written(self._sources.resolve(loop.parent, bound), inside) for bound in _bounds(loop))
                return f"counter({','.join(bounds)})"
            return name

        places: dict[tuple[str, str], set[int]] = {}
        for op in self._sources.named("tt.load", "tt.descriptor_load"):
            addresses = range(1 if op.name == "tt.load" else len(op.operands))
            key = self._names.source(op), ",".join(written(self._sources.operand(op, index)) for index in addresses)
            branch = next((owner for owner in _around(op) if owner.name == "scf.if"), op)
            places.setdefault(key, set()).add(branch.line)
        times: dict[str, int] = {}
        for (source, _), lines in places.items():
            if len(lines) > 1:
                times[source] = max(times.get(source, 0), len(lines))
        return times


def _around(op: Operation) -> Iterator[Operation]:
    """The operations around an operation, the innermost first."""
    region = op.parent
    while region is not None and region.owner is not None:
        yield region.owner
        region = region.owner.parent


def _bounds(loop: Operation) -> list[str]:
    """What an `scf.for` itself reads: its first and last number and its step, and nothing that it carries."""
    return [loop.operands[place] for place in BOUNDS]
