"""What the values of a TTGIR module stand for: which buffer holds K, which mbarrier says that V is full.

Nothing is read from names. A buffer is what the matrix product does with it; a barrier is what is loaded under it, or
what the warp group that loads waits for before it loads.
"""

import re
from collections.abc import Iterator

from kperf.ttgir import Module, Operation

DOT = "ttng.warp_group_dot"
DOT_WAIT = "ttng.warp_group_dot_wait"
COPY = "ttng.async_tma_copy_global_to_local"
WAIT = "ttng.wait_barrier"
ARRIVE = "ttng.arrive_barrier"

_VIEWS = {"ttg.memdesc_index", "ttg.memdesc_trans", "ttg.memdesc_subslice", "ttg.memdesc_reinterpret"}
_OPERAND_NAMES = {"QK": ("Q", "K"), "PV": ("P", "V"), "MMA": ("A", "B")}

Value = tuple[str, str]
"""(space, SSA name): a partition is closed and its SSA names start anew, so it is a space; "" is around them."""


class Dataflow:
    """Names for the operations of a module: `fields(operation)` fills the templates of the region rules."""

    def __init__(self, module: Module) -> None:
        """Follow every value to where it was made."""
        self._spaces: dict[int, str] = {}
        self._made_by: dict[Value, Operation] = {}
        self._passed_as: dict[Value, list[Value]] = {}
        for op in module.walk():
            self._spaces[id(op)] = ""
        for group in module.warp_groups():
            if group.region.label.startswith("partition"):
                self._enter_partition(group.region.owner, group.region.header, list(group.region.walk()), group.name)
        for op in module.walk():
            self._note(op)
        self._operations = list(module.walk())
        self._products = self._name_products()
        self._buffers = self._name_buffers()
        self._barriers = self._name_barriers(module)

    def _enter_partition(self, owner: Operation | None, header: str, operations: list[Operation], space: str) -> None:
        for op in operations:
            self._spaces[id(op)] = space
        arguments = re.findall(r"(%[\w$.-]+): ", header)
        for argument, value in zip(arguments, owner.operands if owner else (), strict=False):
            self._passed_as[space, argument] = [("", value)]

    def _note(self, op: Operation) -> None:
        space = self._spaces[id(op)]
        for result in op.results:
            self._made_by[space, result] = op
        if op.name == "scf.for":
            arguments = re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", op.rest.partition("iter_args")[2])
            for index, (argument, initial) in enumerate(arguments):
                self._passed_as[space, argument] = [
                    (space, name) for name in (initial, *_carried(op)[index : index + 1])
                ]

    def _operand(self, op: Operation, index: int) -> Value:
        return self._spaces[id(op)], op.operands[index] if -len(op.operands) <= index < len(op.operands) else ""

    def _origins(self, value: Value, seen: frozenset[Value] = frozenset()) -> Iterator[Value]:
        """The values from which this one comes, through arguments, loops, waits and views of memory."""
        if value in seen:
            return
        seen = seen | {value}
        space, name = value
        op = self._made_by.get((space, name.split("#")[0]))
        if value in self._passed_as:
            sources = self._passed_as[value]
        elif op is not None and op.name in _VIEWS:
            sources = [self._operand(op, 0)]
        elif op is not None and op.name == DOT_WAIT:
            sources = [(space, operand) for operand in op.operands]
        elif op is not None and op.name == "scf.for":
            sources = [(space, operand) for operand in _carried(op)[int(name.partition("#")[2] or 0) :][:1]]
        else:
            yield space, name.split("#")[0]
            return
        for source in sources:
            yield from self._origins(source, seen)

    def _root(self, value: Value) -> Value:
        return next(self._origins(value), value)

    def _transposed(self, value: Value) -> bool:
        op = self._made_by.get(value)
        while op is not None and op.name in _VIEWS:
            if op.name == "ttg.memdesc_trans":
                return True
            op = self._made_by.get(self._operand(op, 0))
        return False

    def _named(self, *names: str) -> Iterator[Operation]:
        return (op for op in self._operations if op.name in names)

    def _name_products(self) -> dict[int, str]:
        """QK is the product whose second operand is a transposed view, PV the other; MMA, unless both are there."""
        transposed = {id(op): self._transposed(self._operand(op, 1)) for op in self._named(DOT)}
        if set(transposed.values()) != {True, False}:
            return dict.fromkeys(transposed, "MMA")
        return {key: "QK" if value else "PV" for key, value in transposed.items()}

    def _name_buffers(self) -> dict[Value, str]:
        names: dict[Value, str] = {}
        for op in self._named(DOT):
            for index, name in enumerate(_OPERAND_NAMES[self._products[id(op)]]):
                names.setdefault(self._root(self._operand(op, index)), name)
        return names

    def _loaded(self, copy: Operation) -> str:
        return self._buffers.get(self._root(self._operand(copy, -3)), "data")

    def _name_barriers(self, module: Module) -> dict[Value, tuple[str, str]]:
        """Ring of barriers -> (what it guards, full or empty)."""
        loaded: dict[Value, dict[str, None]] = {}
        for op in self._named(COPY):
            loaded.setdefault(self.barrier(op), {})[self._loaded(op)] = None
        names = {barrier: ("+".join(buffers), "full") for barrier, buffers in loaded.items()}
        for group in module.warp_groups():
            awaited: list[Value] = []
            for op in group.region.walk():
                if op.name == WAIT and self.barrier(op) not in names:
                    awaited.append(self.barrier(op))
                elif op.name == COPY:
                    names.update({barrier: (self._loaded(op), "empty") for barrier in awaited})
                    awaited.clear()
        return names

    def barrier(self, operation: Operation) -> Value:
        """The ring of mbarriers that a wait, an arrive or a load uses."""
        return self._root(self._operand(operation, -2 if operation.name == COPY else 0))

    def maker(self, value: Value) -> Operation | None:
        """The operation that makes a value; None for an argument."""
        return self._made_by.get(value)

    def fields(self, operation: Operation) -> dict[str, str]:
        """`product`, `buffer` and `state` of an operation, as far as they apply."""
        if operation.name == DOT:
            return {"product": self._products[id(operation)]}
        if operation.name == DOT_WAIT:
            space = self._spaces[id(operation)]
            makers = [
                self._made_by.get(origin) for name in operation.operands for origin in self._origins((space, name))
            ]
            products = dict.fromkeys(self._products[id(op)] for op in makers if op is not None and op.name == DOT)
            return {"product": "+".join(sorted(products, reverse=True)) or "wgmma"}
        if operation.name == COPY:
            return {"buffer": self._loaded(operation)}
        if operation.name in (WAIT, ARRIVE):
            buffer, state = self._barriers.get(self.barrier(operation), ("barrier", ""))
            return {"buffer": buffer, "state": state}
        return {}


def _carried(loop: Operation) -> tuple[str, ...]:
    """What a loop hands from one trip to the next, and out of the last."""
    last = loop.regions[0].operations[-1] if loop.regions and loop.regions[0].operations else None
    return last.operands if last is not None and last.name == "scf.yield" else ()
