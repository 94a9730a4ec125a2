"""What the values of a TTGIR module are called.

A buffer is called by the function's argument from which it is filled, and an MMA by its two operands. Arguments are
called as in the source, where the text still has their names (`compile.named_ttgir`); aliases give words of a trade.
"""

import re
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict

from kperf.ir.operations import ASYNC_COPY, COPY, DOT, MMAS, REGISTER_LOADS
from kperf.ir.sources import OUTSIDE, Sources, Value
from kperf.ir.ttgir import Operation

_ALLOCATIONS = ("ttg.local_alloc", "ttng.tmem_alloc")
_STORES = ("ttg.local_store", "ttng.tmem_store")
_VALUE_FIRST = {"amdg.buffer_store", "amdg.buffer_atomic_rmw"}
"""Their first operand is what they store, the second where."""
_CASTS = {"arith.extf", "arith.truncf", "arith.bitcast", "tt.fp_to_fp", "tt.bitcast", "tt.trans", "tt.reshape"}
_ADDRESSES = {
    "tt.addptr",
    "tt.splat",
    "tt.unsplat",
    "tt.broadcast",
    "tt.expand_dims",
    "tt.int_to_ptr",
    "tt.make_tensor_descriptor",
    "ttng.reinterpret_tensor_descriptor",
    "tt.load",  # of a pointer, from a table of them
}


class Aliases(BaseModel):
    """Words of a trade for what the TTGIR says in general ones; empty: none.

    arguments: an argument's SSA name -> what is loaded from it. products: a pattern of `left @ right` -> the MMA.
    regions: a region's general name -> its name, or nothing where it shall not be told apart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    arguments: dict[str, str] = {}
    products: dict[str, str] = {}
    regions: dict[str, str] = {}


class Names:
    """Names of the loads, the stores and the MMAs of a module."""

    def __init__(self, sources: Sources, aliases: Aliases | None = None) -> None:
        """Name every MMA."""
        self._sources = sources
        self._aliases = aliases or Aliases()
        self._arguments: dict[Value, str] = {}
        self._described = {
            sources.operand(op, 0): sources.operand(op, 1) for op in sources.named("ttng.tensormap_create")
        }
        self._contents = self._find_contents()
        self._mmas = {id(op): self._name_mma(op) for op in sources.named(*MMAS)}

    def mma(self, operation: Operation) -> str:
        """The name of an MMA: its two operands, or an alias of them."""
        return self._mmas[id(operation)]

    def source(self, operation: Operation) -> str:
        """The arguments at which the addresses of a load, a store or an atomic begin."""
        return self._argument(self._sources.operand(operation, 1 if operation.name in _VALUE_FIRST else 0))

    def accumulated(self, operation: Operation) -> str:
        """What a load from or a store to tensor memory is about: an MMA's result, or what is stored for one."""
        place = self._sources.operand(operation, 1 if operation.name in _STORES else 0)
        stage_ring = self._sources.root(place)
        results = (op for op in self._sources.named(*MMAS) if op.name not in ("tt.dot", DOT, "tt.dot_scaled"))
        mmas = dict.fromkeys(
            self._mmas[id(op)] for op in results if self._sources.root(self._sources.operand(op, 2)) == stage_ring
        )
        return "+".join(mmas) or self._content(place)

    def _argument(self, address: Value) -> str:
        """The name of what an address points into; each step from one address to the next is taken once."""
        steps: dict[Value, None] = {}
        while address not in self._arguments and address not in steps:
            steps[address] = None
            sources = self._sources.step(address, _is_address)
            if sources is None or len(sources) != 1:
                break
            (address,) = sources
        if address not in self._arguments:
            self._arguments[address] = self._name_argument(address)
        self._arguments |= dict.fromkeys(steps, self._arguments[address])
        return self._arguments[address]

    def _name_argument(self, address: Value) -> str:
        names: dict[str, None] = {}
        for origin in self._sources.origins(address, _is_address):
            described = self._described.get(origin)
            if described is not None:
                names[self._argument(described)] = None
            elif origin[0] == OUTSIDE and origin[1]:
                names[self._called(origin[1])] = None
        return "+".join(names) or "data"

    def _called(self, argument: str) -> str:
        name = argument.removeprefix("%")
        alias = self._aliases.arguments.get(name)
        return alias or re.sub(r"_(ptrs?|desc)$", "", name)

    def _find_contents(self) -> dict[Value, list[Operation]]:
        """Buffer in shared memory -> the operations that fill it."""
        contents: dict[Value, list[Operation]] = {}
        for op in self._sources.named(COPY, ASYNC_COPY, *_STORES):
            place = -3 if op.name == COPY else 1
            contents.setdefault(self._sources.root(self._sources.operand(op, place)), []).append(op)
        return contents

    def _name_mma(self, op: Operation) -> str:
        name = " @ ".join(self._content(self._sources.operand(op, index)) for index in (0, 1))
        patterns = self._aliases.products.items()
        return next((alias for pattern, alias in patterns if fnmatchcase(name, pattern)), name)

    def _content(self, value: Value, visited: frozenset[Value] = frozenset()) -> str:
        """What an MMA reads: what was loaded, or the variable that was computed."""
        names: dict[str, None] = {}
        for origin in self._sources.origins(
            value, lambda op: op.name in _CASTS or (op.name in _ALLOCATIONS and bool(op.operands))
        ):
            op = self._sources.maker(origin)
            if op is not None and op.name in REGISTER_LOADS:
                names[self.source(op)] = None
            elif origin in self._contents and origin not in visited:
                fills = self._contents[origin]
                loads = [
                    fill for fill in fills if fill.name not in _STORES
                ]  # what a loaded buffer is used for afterwards
                names |= dict.fromkeys(
                    self._content(self._sources.operand(fill, 0), visited | {origin})
                    if fill.name in _STORES
                    else self.source(fill)
                    for fill in loads or fills
                )
            else:
                variable = re.sub(r"_\d+$", "", origin[1].removeprefix("%"))
                names["computed" if not variable or variable[0].isdigit() else variable] = None
        return "+".join(names) or "computed"


def _is_address(operation: Operation) -> bool:
    return operation.name in _ADDRESSES
