"""What the values of a TTGIR module stand for: which buffer holds K, which barrier says that V is full.

Nothing is read from names. A buffer is what the matrix product does with it; a barrier is what is loaded under it, or
what the warp group that loads waits for before it loads.
"""

import re
from collections.abc import Iterator

from kperf.ir.ttgir import Module, Operation, Region

DOT = "ttng.warp_group_dot"
DOT_WAIT = "ttng.warp_group_dot_wait"
COPY = "ttng.async_tma_copy_global_to_local"
WAIT = "ttng.wait_barrier"
ARRIVE = "ttng.arrive_barrier"
_ASSEMBLY = "tt.elementwise_inline_asm"

_VIEWS = {"ttg.memdesc_index", "ttg.memdesc_trans", "ttg.memdesc_subslice", "ttg.memdesc_reinterpret"}
_COPIES = {"ttg.local_load", "ttg.convert_layout"}
"""From shared memory to registers, and from register to register: what a product reads may have come so."""
_OPERAND_NAMES = {"QK": ("Q", "K"), "PV": ("P", "V"), "MMA": ("A", "B")}
_NAMED_BARRIER = re.compile(r'^ *"bar(?:rier)?\.(sync|arrive) \$1, (\d+);.*\} (%[\w$.#-]+) : ')
"""Inline PTX on one of the hardware's named barriers: whether it waits, how many threads meet there, its number."""

Value = tuple[int, str]
"""(line of the region that makes it, SSA name): sibling regions use the same names for other values."""

_HARDWARE = -2
"""In the place of a region's line: a named barrier is the hardware's."""
_OUTSIDE = -1
"""In the place of a region's line: an argument of the function."""


class Dataflow:
    """Names for the operations of a module: `fields(operation)` fills the templates of the region rules."""

    def __init__(self, module: Module) -> None:
        """Follow every value to where it was made."""
        self._operations = list(module.walk())
        self._made_by: dict[Value, Operation] = {}
        self._passed_as: dict[Value, list[Value]] = {}
        for op in self._operations:
            for result in op.results:
                self._made_by[_line(op.parent), result] = op
        arguments = {**self._partition_arguments(module), **self._loop_arguments()}
        self._passed_as = {argument: [] for argument in arguments}  # all are known before the first is resolved
        for argument, sources in arguments.items():
            self._passed_as[argument] = [self._resolve(region, name) for region, name in sources]
        self._products = self._name_products()
        self._buffers = self._name_buffers()
        users = [op for op in self._operations if self.waits(op) or self.signals(op) or op.name == COPY]
        self._shared = {self._ring(op) for op in users if self._number(op) is None}
        self._barriers = self._name_barriers(module)

    def _partition_arguments(self, module: Module) -> dict[Value, list[tuple[Region | None, str]]]:
        """Of closed partitions, which see nothing from around them but what they are given."""
        found: dict[Value, list[tuple[Region | None, str]]] = {}
        for group in module.warp_groups():
            owner, region = group.region.owner, group.region
            if _is_closed(region) and owner is not None:
                arguments = re.findall(r"(%[\w$.-]+): ", region.header)
                for argument, value in zip(arguments, owner.operands, strict=False):
                    found[region.line, argument] = [(owner.parent, value)]
        return found

    def _loop_arguments(self) -> dict[Value, list[tuple[Region | None, str]]]:
        """What a loop carries: its value before the loop, and the one that each trip hands on."""
        found: dict[Value, list[tuple[Region | None, str]]] = {}
        for op in self._named("scf.for"):
            body = op.regions[0] if op.regions else None
            arguments = re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", op.rest.partition("iter_args")[2])
            for index, (argument, initial) in enumerate(arguments):
                carried = _carried(op)[index : index + 1]
                found[_line(body), argument] = [(op.parent, initial), *((body, name) for name in carried)]
        return found

    def _resolve(self, region: Region | None, name: str) -> Value:
        """The value that `name` means in a region: made there, or in the nearest region around it that makes one."""
        while region is not None:
            if (region.line, name.partition("#")[0]) in self._made_by or (region.line, name) in self._passed_as:
                return region.line, name
            region = None if _is_closed(region) or region.owner is None else region.owner.parent
        return _OUTSIDE, name

    def _operand(self, op: Operation, index: int) -> Value:
        names = op.operands
        return self._resolve(op.parent, names[index]) if -len(names) <= index < len(names) else (_OUTSIDE, "")

    def _maker(self, value: Value) -> Operation | None:
        return self._made_by.get((value[0], value[1].split("#")[0]))

    def _origins(self, value: Value, seen: frozenset[Value] = frozenset()) -> Iterator[Value]:
        """The values from which this one comes, through arguments, loops, waits, copies and views of memory."""
        if value in seen:
            return
        seen = seen | {value}
        op = self._maker(value)
        result = int(value[1].partition("#")[2] or 0)
        if value in self._passed_as:
            sources = self._passed_as[value]
        elif op is not None and op.name in _VIEWS | _COPIES:
            sources = [self._operand(op, 0)]
        elif op is not None and op.name == DOT_WAIT:
            sources = [self._operand(op, result)]
        elif op is not None and op.name == "scf.for":
            sources = [self._resolve(op.regions[0], name) for name in _carried(op)[result : result + 1]]
        else:
            yield value[0], value[1].split("#")[0]
            return
        for source in sources:
            yield from self._origins(source, seen)

    def _root(self, value: Value) -> Value:
        return next(self._origins(value), value)

    def _constant(self, value: Value) -> int | None:
        """The number that a value always is; None if there is no such number."""
        found = set()
        for origin in self._origins(value):
            op = self._maker(origin)
            match = re.match(r" (-?\d+) : i\d+", op.rest) if op is not None and op.name == "arith.constant" else None
            found.add(int(match.group(1)) if match else None)
        return found.pop() if len(found) == 1 else None

    def _transposed(self, value: Value) -> bool:
        op = self._maker(value)
        while op is not None and op.name in _VIEWS:
            if op.name == "ttg.memdesc_trans":
                return True
            op = self._maker(self._operand(op, 0))
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
        loaded: dict[tuple[Value, str], dict[str, None]] = {}
        for op in self._named(COPY):
            loaded.setdefault((self.barrier(op), "full"), {})[self._loaded(op)] = None
        full = {ring for ring, _ in loaded}
        for group in module.warp_groups():
            awaited: list[Value] = []
            used = False
            for op in group.region.walk():
                if op.name == COPY:
                    used = True
                    for ring in awaited:
                        loaded.setdefault((ring, "empty"), {})[self._loaded(op)] = None
                elif self.waits(op) and self.barrier(op) not in full:
                    awaited = [*([] if used else awaited), self.barrier(op)]
                    used = False
        return {ring: ("+".join(buffers), state) for (ring, state), buffers in loaded.items()}

    @staticmethod
    def waits(operation: Operation) -> bool:
        """Whether it waits for an mbarrier or a named barrier."""
        named = _named_barrier(operation)
        return operation.name == WAIT or (named is not None and named[1] == "sync")

    @staticmethod
    def signals(operation: Operation) -> bool:
        """Whether it arrives at an mbarrier or a named barrier and goes on."""
        named = _named_barrier(operation)
        return operation.name == ARRIVE or (named is not None and named[1] == "arrive")

    def _number(self, operation: Operation) -> int | None:
        """Which barrier of its ring an operation uses; None if that is computed."""
        if named := _named_barrier(operation):
            return self._constant(self._resolve(operation.parent, named[3]))
        value = self._operand(operation, -2 if operation.name == COPY else 0)
        while True:
            op = self._maker(value)
            if len(self._passed_as.get(value, ())) == 1:
                value = self._passed_as[value][0]
            elif op is not None and op.name == "ttg.memdesc_index":
                return self._constant(self._operand(op, 1))
            else:
                return None

    def _ring(self, operation: Operation) -> Value:
        """All barriers among which an operation's is chosen: named ones by how many threads meet there."""
        if named := _named_barrier(operation):
            return _HARDWARE, named[2]
        return self._root(self._operand(operation, -2 if operation.name == COPY else 0))

    def barrier(self, operation: Operation) -> Value:
        """The ring of barriers that a wait, an arrive or a load uses; one of them, if nobody computes which."""
        ring = self._ring(operation)
        return ring if ring in self._shared else (ring[0], f"{ring[1]}[{self._number(operation)}]")

    def arrivals(self, operation: Operation) -> tuple[Value, int | None]:
        """The ring at which an operation arrives, and at which of its barriers, if that is a constant."""
        return self.barrier(operation), self._number(operation)

    def stages(self, operation: Operation) -> int:
        """How many waits for the ring of an operation are over before anyone has arrived there.

        A wait for an mbarrier's phase before the first is over at once; a named barrier has no such wait.
        """
        ring = self._ring(operation)
        maker = self._maker(ring)
        if ring[0] == _HARDWARE:
            return 0
        match = re.search(r"memdesc<(\d+)x\d+xi64", maker.rest if maker else "") if ring in self._shared else None
        return int(match.group(1)) if match else 1

    def fields(self, operation: Operation) -> dict[str, str]:
        """`product`, `buffer` and `state` of an operation, as far as they apply."""
        if operation.name == DOT:
            return {"product": self._products[id(operation)]}
        if operation.name == DOT_WAIT:
            operands = [self._resolve(operation.parent, name) for name in operation.operands]
            makers = [self._maker(origin) for operand in operands for origin in self._origins(operand)]
            products = dict.fromkeys(self._products[id(op)] for op in makers if op is not None and op.name == DOT)
            return {"product": "+".join(sorted(products, reverse=True)) or "wgmma"}
        if operation.name == COPY:
            return {"buffer": self._loaded(operation)}
        if self.waits(operation) or self.signals(operation):
            unknown = "barrier" if operation.name in (WAIT, ARRIVE) else "turn"
            buffer, state = self._barriers.get(self.barrier(operation), (unknown, ""))
            return {"buffer": buffer, "state": state}
        return {"buffer": "turn"} if operation.name == _ASSEMBLY else {}  # a named barrier written in another way


def _named_barrier(operation: Operation) -> re.Match[str] | None:
    return _NAMED_BARRIER.match(operation.rest) if operation.name == _ASSEMBLY else None


def _line(region: Region | None) -> int:
    return _OUTSIDE if region is None else region.line


def _is_closed(region: Region) -> bool:
    return region.label.startswith("partition")


def _carried(loop: Operation) -> tuple[str, ...]:
    """What a loop hands from one trip to the next, and out of the last."""
    last = loop.regions[0].operations[-1] if loop.regions and loop.regions[0].operations else None
    return last.operands if last is not None and last.name == "scf.yield" else ()
