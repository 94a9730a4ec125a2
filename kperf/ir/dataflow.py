"""What the values of a TTGIR module stand for: where a load comes from, which barrier says that it is there.

A buffer is called by the function's argument from which it is filled, an MMA by its two operands, a barrier by what
is loaded under it, or by what the warp group that loads waits for before it loads. Arguments are called as in the
source, where the text still has their names (`compile.named_ttgir`); aliases give words of a trade.
"""

import operator
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatchcase

from pydantic import BaseModel, ConfigDict

from kperf.arch import completion, operations
from kperf.ir.ttgir import Module, Operation, Region, control_flow

DOT = "ttng.warp_group_dot"
DOT_WAIT = "ttng.warp_group_dot_wait"
MMAS = operations("mma")
COMMIT = "ttng.tc_gen5_commit"
COPY = "ttng.async_tma_copy_global_to_local"
ASYNC_COPY = "ttg.async_copy_global_to_local"
ASYNC_WAIT = "ttg.async_wait"
WAIT = "ttng.wait_barrier"
ARRIVE = "ttng.arrive_barrier"
REGISTER_LOADS = operations("load")
STORES = operations("store")
_ASSEMBLY = "tt.elementwise_inline_asm"
_ALLOCATIONS = ("ttg.local_alloc", "ttng.tmem_alloc")
_STORES = ("ttg.local_store", "ttng.tmem_store")
_TENSOR_MEMORY = {"ttng.tmem_load": "empty", "ttng.tmem_store": "full"}
"""Who arrives at a barrier after one of these says that the buffer in tensor memory is read or written."""

_VALUE_FIRST = {"amdg.buffer_store", "amdg.buffer_atomic_rmw"}
"""Their first operand is what they store, the second where."""

_VIEWS = {
    "ttg.memdesc_index",
    "ttg.memdesc_trans",
    "ttg.memdesc_subslice",
    "ttg.memdesc_reinterpret",
    "ttg.memdesc_reshape",
    "ttng.tmem_subslice",
}
_COPIES = {"ttg.local_load", "ttg.convert_layout"}
"""From shared memory to registers, and from register to register: what an MMA reads may have come so."""
_TRANSPARENT = _VIEWS | _COPIES
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
_NAMED_BARRIER = re.compile(r'^ *"bar(?:rier)?\.(sync|arrive) \$1, (\d+);.*\} (%[\w$.#-]+) : ')
"""Inline PTX on one of the hardware's named barriers: whether it waits, how many threads meet there, its number."""
_HANDING_ON = {"scf.yield", "scf.condition", "scf.while", "cf.br"}
"""Operations whose operands are what a loop or a branch carries."""
_EVALUATED: dict[str, Callable[[int, int], int]] = {
    "addi": operator.add,
    "subi": operator.sub,
    "xori": operator.xor,
    "andi": operator.and_,
    "eq": operator.eq,
    "ne": operator.ne,
    "slt": operator.lt,
    "sle": operator.le,
    "sgt": operator.gt,
    "sge": operator.ge,
}
"""Arithmetic of phases, and comparisons by their predicate."""
_DEEPEST = 12
"""Steps from a phase to the constants that it is made of."""
_MOST_IN_FLIGHT = 8
"""MMAs in flight that are kept apart; a schedule has at most a few."""

_Queue = tuple[tuple[str, tuple["Value", ...]], ...]
"""Asynchronous MMAs in flight, and the stage rings at which the tensor core arrives when they are done."""

Value = tuple[int, str]
"""(line of the region that makes it, SSA name): sibling regions use the same names for other values."""

_HARDWARE = -2
"""In the place of a region's line: a named barrier is the hardware's."""
_OUTSIDE = -1
"""In the place of a region's line: an argument of the function."""


class Aliases(BaseModel):
    """Words of a trade for what the TTGIR says in general ones; empty: none.

    arguments: an argument's SSA name -> what is loaded from it. products: a pattern of `left @ right` -> the MMA.
    regions: a region's general name -> its name, or nothing where it shall not be told apart.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    arguments: dict[str, str] = {}
    products: dict[str, str] = {}
    regions: dict[str, str] = {}


class Dataflow:
    """Names for the operations of a module: `fields(operation)` fills the templates of the region rules."""

    def __init__(self, module: Module, aliases: Aliases | None = None) -> None:
        """Follow every value to where it was made."""
        self._aliases = aliases or Aliases()
        self._operations = list(module.walk())
        self._made_by: dict[Value, Operation] = {}
        self._passed_as: dict[Value, list[Value]] = {}
        self._arguments: dict[Value, str] = {}
        for op in self._operations:
            for result in op.results:
                self._made_by[_line(op.parent), result] = op
        self._counters = {
            (op.regions[0].line, match[1]): op
            for op in self._named("scf.for")
            if (match := re.match(r" *(%[\w$.-]+) =", op.rest))
        }
        arguments = {**self._partition_arguments(module), **self._region_arguments()}
        self._passed_as = {argument: [] for argument in arguments}  # all are known before the first is resolved
        for argument, sources in arguments.items():
            self._passed_as[argument] = [self._resolve(region, name) for region, name in sources]
        self._described = {self._operand(op, 0): self._operand(op, 1) for op in self._named("ttng.tensormap_create")}
        self._contents = self._find_contents()
        self._mmas = {id(op): self._name_mma(op) for op in self._named(*MMAS)}
        self._bases = self._find_bases()
        barriers = [barrier for op in self._operations for barrier in self._barriers_of(op)]
        self._shared = {stage_ring for stage_ring, number in barriers if number is None}
        self._meetings = self._find_meetings(module)
        self._arriving = self._find_arriving(module)
        self._barriers = self._name_barriers(module)
        self._completed, self._left = self._follow_queues(module)
        self._first_uses = self._find_first_uses()

    def _find_bases(self) -> dict[str, int]:
        """How many threads meet at named barriers whose number is computed -> the least that is added for a number."""
        by_threads: dict[str, list[int]] = {}
        for op in self._operations:
            if named := _named_barrier(op):
                number = self._resolve(op.parent, named[3])
                if self._constant(number) is None:
                    by_threads.setdefault(named[2], []).append(self._base(number))
        return {threads: min(bases) for threads, bases in by_threads.items()}

    def _base(self, number: Value) -> int:
        """The constant that is added to something for a number; 0 if none is."""
        op = self._maker(self._root(number))
        if op is None or op.name != "arith.addi":
            return 0
        added = (self._constant(self._operand(op, index)) for index in (0, 1))
        return next((constant for constant in added if constant is not None), 0)

    def _partition_arguments(self, module: Module) -> dict[Value, list[tuple[Region | None, str]]]:
        """Of closed partitions, which see nothing from around them but what they are given."""
        passed: dict[Value, list[tuple[Region | None, str]]] = {}
        for group in module.warp_groups():
            owner, region = group.region.owner, group.region
            if _is_closed(region) and owner is not None:
                arguments = re.findall(r"(%[\w$.-]+): ", region.header)
                for argument, value in zip(arguments, owner.operands, strict=False):
                    passed[region.line, argument] = [(owner.parent, value)]
        return passed

    def _region_arguments(self) -> dict[Value, list[tuple[Region | None, str]]]:
        """What a loop carries (its value before the loop, what each iteration hands on), and what a branch passes."""
        by_argument: dict[Value, list[tuple[Region | None, str]]] = {}

        def add(region: Region, argument: str, source: Region | None, name: str) -> None:
            by_argument.setdefault((region.line, argument), []).append((source, name))

        for op in self._operations:
            if op.name in ("scf.for", "scf.while"):
                first, last = op.regions[0], op.regions[-1]
                header = op.rest.partition("iter_args")[2] if op.name == "scf.for" else op.rest
                carried = _yielded(last)
                for index, (argument, initial) in enumerate(re.findall(r"(%[\w$.-]+) = (%[\w$.#-]+)", header)):
                    add(first, argument, op.parent, initial)
                    for name in carried[index : index + 1]:
                        add(first, argument, last, name)
                if op.name == "scf.while":
                    for argument, name in zip(last.blocks[0].arguments, _yielded(first), strict=False):
                        add(last, argument, first, name)
            for region in op.regions:
                blocks = {block.label: block for block in region.blocks}
                for block in region.blocks:
                    branch = block.operations[-1].rest if block.operations else ""
                    for label, passed in re.findall(r"\^(\w+)(?:\(([^)]*)\))?", branch):
                        names = re.findall(r"%[\w$.-]+(?:#\d+)?", passed)
                        for argument, name in zip(blocks[label].arguments, names, strict=False):
                            add(region, argument, region, name)
        return by_argument

    def _resolve(self, region: Region | None, name: str) -> Value:
        """The value that `name` means in a region: made there, or in the nearest region around it that makes one."""
        while region is not None:
            value = region.line, name
            made = (region.line, name.partition("#")[0]) in self._made_by
            if made or value in self._passed_as or value in self._counters:
                return value
            region = None if _is_closed(region) or region.owner is None else region.owner.parent
        return _OUTSIDE, name

    def _operand(self, op: Operation, index: int) -> Value:
        names = op.operands
        return self._resolve(op.parent, names[index]) if -len(names) <= index < len(names) else (_OUTSIDE, "")

    def _maker(self, value: Value) -> Operation | None:
        return self._made_by.get((value[0], value[1].split("#")[0]))

    def _origins(self, value: Value, through: Callable[[Operation], bool] = lambda _: False) -> Iterator[Value]:
        """The values from which this one comes: through arguments, loops, branches, waits, copies, views of memory,
        and the first operand of the operations that `through` lets pass."""
        visited: set[Value] = set()
        todo = [value]  # not by recursion: in an unrolled kernel thousands of values come one from another
        while todo:
            value = todo.pop()
            if value in visited:
                continue
            visited.add(value)
            sources = self._sources(value, through)
            if sources is None:
                yield value[0], value[1].split("#")[0]
            else:
                todo += reversed(sources)

    def _sources(self, value: Value, through: Callable[[Operation], bool]) -> list[Value] | None:
        """The values of which this one is one; None if it is made here."""
        op = self._maker(value)
        result = int(value[1].partition("#")[2] or 0)
        sources = self._passed_as.get(value)
        if sources is not None or op is None:
            return sources
        if op.name in _TRANSPARENT or through(op):
            sources = [self._operand(op, 0)]
        elif op.name == DOT_WAIT:
            sources = [self._operand(op, result)]
        elif op.name == "arith.select":
            sources = [self._operand(op, 1), self._operand(op, 2)]
        elif op.name in ("scf.for", "scf.if", "scf.while"):
            regions = op.regions[:1] if op.name == "scf.while" else op.regions
            sources = [
                self._resolve(region, name) for region in regions for name in _yielded(region)[result : result + 1]
            ]
        return sources

    def _root(self, value: Value) -> Value:
        return next(self._origins(value), value)

    def _constant(self, value: Value) -> int | None:
        """The number that a value always is; None if there is no such number."""
        numbers = set()
        for origin in self._origins(value):
            op = self._maker(origin)
            match = re.match(r" (-?\d+) : i\d+", op.rest) if op is not None and op.name == "arith.constant" else None
            numbers.add(int(match.group(1)) if match else None)
        return numbers.pop() if len(numbers) == 1 else None

    def _named(self, *names: str) -> Iterator[Operation]:
        return (op for op in self._operations if op.name in names)

    def source(self, operation: Operation) -> str:
        """The arguments at which the addresses of a load, a store or an atomic begin."""
        return self._argument(self._operand(operation, 1 if operation.name in _VALUE_FIRST else 0))

    def _argument(self, address: Value) -> str:
        """The name of what an address points into; each step from one address to the next is taken once."""
        steps: dict[Value, None] = {}
        while address not in self._arguments and address not in steps:
            steps[address] = None
            sources = self._sources(address, _is_address)
            if sources is None or len(sources) != 1:
                break
            (address,) = sources
        if address not in self._arguments:
            self._arguments[address] = self._name_argument(address)
        self._arguments |= dict.fromkeys(steps, self._arguments[address])
        return self._arguments[address]

    def _name_argument(self, address: Value) -> str:
        names: dict[str, None] = {}
        for origin in self._origins(address, _is_address):
            described = self._described.get(origin)
            if described is not None:
                names[self._argument(described)] = None
            elif origin[0] == _OUTSIDE and origin[1]:
                names[self._called(origin[1])] = None
        return "+".join(names) or "data"

    def _called(self, argument: str) -> str:
        name = argument.removeprefix("%")
        alias = self._aliases.arguments.get(name)
        return alias or re.sub(r"_(ptrs?|desc)$", "", name)

    def _find_contents(self) -> dict[Value, list[Operation]]:
        """Buffer in shared memory -> the operations that fill it."""
        contents: dict[Value, list[Operation]] = {}
        for op in self._named(COPY, ASYNC_COPY, *_STORES):
            place = -3 if op.name == COPY else 1
            contents.setdefault(self._root(self._operand(op, place)), []).append(op)
        return contents

    def _name_mma(self, op: Operation) -> str:
        name = " @ ".join(self._content(self._operand(op, index)) for index in (0, 1))
        patterns = self._aliases.products.items()
        return next((alias for pattern, alias in patterns if fnmatchcase(name, pattern)), name)

    def _content(self, value: Value, visited: frozenset[Value] = frozenset()) -> str:
        """What an MMA reads: what was loaded, or the variable that was computed."""
        names: dict[str, None] = {}
        for origin in self._origins(
            value, lambda op: op.name in _CASTS or (op.name in _ALLOCATIONS and bool(op.operands))
        ):
            op = self._maker(origin)
            if op is not None and op.name in REGISTER_LOADS:
                names[self.source(op)] = None
            elif origin in self._contents and origin not in visited:
                fills = self._contents[origin]
                loads = [
                    fill for fill in fills if fill.name not in _STORES
                ]  # what a loaded buffer is used for afterwards
                names |= dict.fromkeys(
                    self._content(self._operand(fill, 0), visited | {origin})
                    if fill.name in _STORES
                    else self.source(fill)
                    for fill in loads or fills
                )
            else:
                variable = re.sub(r"_\d+$", "", origin[1].removeprefix("%"))
                names["computed" if not variable or variable[0].isdigit() else variable] = None
        return "+".join(names) or "computed"

    def _find_arriving(self, module: Module) -> dict[Value, dict[str, None]]:
        """Ring of mbarriers -> the MMAs at whose end the tensor core arrives there.

        A commit arrives for all MMAs that its warp group issued before.
        """
        arriving: dict[Value, dict[str, None]] = {}
        for group in module.warp_groups():
            issued: dict[str, None] = {}
            for op in group.region.walk():
                if op.name in MMAS:
                    issued[self._mmas[id(op)]] = None
                for stage_ring in self.arrives(op):
                    mmas = issued if op.name == COMMIT else [self._mmas[id(op)]]
                    arriving.setdefault(stage_ring, {}).update(dict.fromkeys(mmas))
        return arriving

    def _follow_queues(self, module: Module) -> tuple[dict[int, str], dict[int, int]]:
        """Wait -> the MMAs that it completes, along all ways on which a warp can come to it.

        Wait for an mbarrier -> how many MMAs of its own warp group it leaves in flight, at most.
        """
        completed: dict[int, dict[str, None]] = {}
        left: dict[int, int] = {}
        for group in module.warp_groups():
            region = group.region if _is_closed(group.region) else module.function.regions[0]
            graph = control_flow(region)
            own = {stage_ring for op in group.region.walk() for stage_ring in self.arrives(op)}
            reached: dict[int, set[_Queue]] = {}
            todo: list[tuple[Operation, _Queue]] = [(region.operations[0], ())] if region.operations else []
            while todo:
                op, queue = todo.pop()
                if queue in reached.setdefault(op.line, set()):
                    continue
                reached[op.line].add(queue)
                if op.name in MMAS and completion(op.name) != "sync":
                    asynchronous = op.name != DOT or "isAsync = true" in op.rest
                    issued = self._mmas[id(op)], self.arrives(op)
                    queue = (*queue, issued)[-_MOST_IN_FLIGHT:] if asynchronous else ()
                elif op.name == COMMIT and queue:
                    mma, stage_rings = queue[-1]
                    queue = (
                        *queue[:-1],
                        (mma, tuple(dict.fromkeys((*stage_rings, *self.arrives(op))))),
                    )  # each once: it loops
                elif op.name == DOT_WAIT:
                    done = max(len(queue) - pendings(op), 0)
                    completed.setdefault(id(op), {}).update(dict.fromkeys(mma for mma, _ in queue[:done]))
                    queue = queue[done:]
                elif self.completes(op):
                    stage_ring = self.barrier(op)
                    done = next(
                        (place for place, (_, stage_rings) in enumerate(queue, 1) if stage_ring in stage_rings), 0
                    )
                    queue = queue[done:]
                    if stage_ring in own:
                        left[id(op)] = max(len(queue), left.get(id(op), 0))
                todo += [(following, queue) for following in reversed(graph.get(op.line, ()))]
        return {key: "+".join(mmas) for key, mmas in completed.items()}, left

    def _find_meetings(self, module: Module) -> set[Value]:
        """Named barriers at which warp groups wait for each other: several do, and none arrives and goes on."""
        waiting: dict[Value, set[str]] = {}
        for group in module.warp_groups():
            for op in group.region.walk():
                if _named_barrier(op) and self.waits(op):
                    waiting.setdefault(self.barrier(op), set()).add(group.name)
        signalled = {self.barrier(op) for op in self._operations if self.signals(op)}
        return {stage_ring for stage_ring, groups in waiting.items() if len(groups) > 1} - signalled

    def _name_barriers(self, module: Module) -> dict[Value, tuple[str, str]]:
        """Ring of barriers -> (what it guards, full or empty).

        A wait before a load guards its buffer where another warp group waits for what is loaded: a group that loads for
        itself knows when it has read the buffer. A meeting guards nothing.
        """
        loaded: dict[tuple[Value, str], dict[str, None]] = {}
        for op in self._named(COPY):
            loaded.setdefault((self.barrier(op), "full"), {})[self.source(op)] = None
        full = {stage_ring for stage_ring, _ in loaded}
        groups = module.warp_groups()
        waiting = {
            (self.barrier(op), n) for n, group in enumerate(groups) for op in group.region.walk() if self.waits(op)
        }
        for number, group in enumerate(groups):
            others = {stage_ring for stage_ring, n in waiting if n != number}
            awaited: list[Value] = []
            used = False
            for op in group.region.walk():
                if op.name == COPY and self.barrier(op) in others:
                    used = True
                    for stage_ring in awaited:
                        loaded.setdefault((stage_ring, "empty"), {})[self.source(op)] = None
                elif self.waits(op) and self.barrier(op) not in full | self._meetings:
                    awaited = [*([] if used else awaited), self.barrier(op)]
                    used = False
            self._name_tensor_memory(group.region, loaded)
        return {stage_ring: ("+".join(buffers), state) for (stage_ring, state), buffers in loaded.items()}

    def _name_tensor_memory(self, region: Region, named: dict[tuple[Value, str], dict[str, None]]) -> None:
        """A barrier at which a group arrives after it read or wrote tensor memory guards that, if nothing else."""
        last: Operation | None = None
        for op in region.walk():
            if op.name in _TENSOR_MEMORY:
                last = op
            elif op.name == ARRIVE and last is not None:
                stage_ring, state = self.barrier(op), _TENSOR_MEMORY[last.name]
                if not any((stage_ring, other) in named for other in ("full", "empty") if other != state):
                    named.setdefault((stage_ring, state), {})[self._accumulated(last)] = None
                last = None

    def _accumulated(self, operation: Operation) -> str:
        """What a load from or a store to tensor memory is about: an MMA's result, or what is stored for one."""
        place = self._operand(operation, 1 if operation.name in _STORES else 0)
        stage_ring = self._root(place)
        results = (op for op in self._named(*MMAS) if op.name not in ("tt.dot", DOT, "tt.dot_scaled"))
        mmas = dict.fromkeys(self._mmas[id(op)] for op in results if self._root(self._operand(op, 2)) == stage_ring)
        return "+".join(mmas) or self._content(place)

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

    def completes(self, operation: Operation) -> bool:
        """Whether it waits for an mbarrier at which the tensor core arrives when MMAs are done, to use their results.

        A group that waits there before it loads waits for an empty buffer.
        """
        if operation.name != WAIT:
            return False
        stage_ring = self.barrier(operation)
        return stage_ring in self._arriving and stage_ring not in self._barriers and not self._is_free(operation)

    def _is_free(self, wait: Operation) -> bool:
        """Whether a wait for an mbarrier is for the phase before its first, as constants say: it is over at once."""
        return self.barrier(wait) in self._arriving and self._constant(self._operand(wait, 1)) == 1

    def arrives(self, operation: Operation) -> tuple[Value, ...]:
        """The stage rings at which the tensor core arrives when an MMA, or all before a commit, is done."""
        if operation.name != COMMIT and completion(operation.name) != "tcgen05":
            return ()
        return tuple(self._one_of(*barrier) for barrier in self._barriers_of(operation))

    def _barriers_of(self, operation: Operation) -> list[tuple[Value, int | None]]:
        """The barriers that an operation waits for or arrives at, or has arrived at when it is done.

        Each is a stage ring, and which of it; None if that is computed. Of named ones those where as many threads meet
        are a ring from the least number on that is computed.
        """
        if named := _named_barrier(operation):
            number, threads = self._constant(self._resolve(operation.parent, named[3])), named[2]
            base = self._bases.get(threads)
            computed = base is not None and (number is None or number >= base)
            return [((_HARDWARE, f"{threads} from {base}" if computed else threads), number)]
        values = []
        if operation.name in (WAIT, ARRIVE, COMMIT, COPY):
            values = [self._operand(operation, -2 if operation.name == COPY else 0)]
        elif completion(operation.name) == "tcgen05":
            head, accumulator = operation.rest.split(" : ")[0], operation.operands[2]
            names = re.findall(r"(%[\w$.#-]+)\[%", head)
            values = [self._resolve(operation.parent, name) for name in names if name != accumulator]
        return [(self._root(value), self._number(value)) for value in values]

    def _number(self, barrier: Value) -> int | None:
        while True:
            op = self._maker(barrier)
            if len(self._passed_as.get(barrier, ())) == 1:
                barrier = self._passed_as[barrier][0]
            elif op is not None and op.name == "ttg.memdesc_index":
                return self._constant(self._operand(op, 1))
            else:
                return None

    def barrier(self, operation: Operation) -> Value:
        """The stage ring that a wait, an arrive or a load uses; one of them, if nobody computes which."""
        return self._one_of(*self._barriers_of(operation)[0])

    def _one_of(self, stage_ring: Value, number: int | None) -> Value:
        return stage_ring if stage_ring in self._shared else (stage_ring[0], f"{stage_ring[1]}[{number}]")

    def _first(self, value: Value, depth: int = 0) -> int | None:
        """The number that a value is when a loop around it begins; None if constants do not say."""
        op = self._maker(value)
        if depth == _DEEPEST:
            return None
        if value in self._passed_as:
            return self._first(self._passed_as[value][0], depth + 1)
        if op is None or not op.name.startswith("arith.") or op.name == "arith.constant":
            return self._constant(value)
        numbers = [self._first(self._resolve(op.parent, name), depth + 1) for name in op.operands]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        if op.name == "arith.select":
            return known[1] if known[0] else known[2]
        name = op.rest.partition(",")[0].strip() if op.name == "arith.cmpi" else op.name.removeprefix("arith.")
        return int(_EVALUATED[name](*known)) if name in _EVALUATED else None

    def awaited(self, operation: Operation) -> tuple[Value, ...]:
        """The rings for which an operation waits: a barrier's, or the buffers that cp.async fills."""
        if operation.name == ASYNC_WAIT:
            return tuple(dict.fromkeys(self.filled(copy) for copy in self._copies(operation)))
        if operation.name == WAIT and self._is_free(operation):
            return ()
        return (self.barrier(operation),) if self.waits(operation) else ()

    def filled(self, load: Operation) -> Value:
        """The stage ring that says that a load has arrived: TMA's barrier, or the buffer itself that cp.async fills."""
        return self.barrier(load) if load.name == COPY else self._root(self._operand(load, 1))

    def _copies(self, operation: Operation, visited: set[int] | None = None) -> Iterator[Operation]:
        """The copies behind the tokens of a wait for cp.async, in the order of the tokens, each once.

        Tokens go through groups and other waits, and around loops; `visited`: the lines that were met.
        """
        visited = set() if visited is None else visited
        for index in range(len(operation.operands)):
            for origin in self._origins(self._operand(operation, index)):
                op = self._maker(origin)
                if op is None or op.line in visited:
                    continue
                visited.add(op.line)
                if op.name == ASYNC_COPY:
                    yield op
                else:
                    yield from self._copies(op, visited)

    def arrivals(self, operation: Operation) -> tuple[Value, int | None]:
        """The stage ring at which an operation arrives, and at which of its barriers, if that is a constant."""
        return self.barrier(operation), self._barriers_of(operation)[0][1]

    def stages(self, operation: Operation) -> int:
        """How many waits for the stage ring of an operation are over before anyone has arrived there.

        A wait for an mbarrier's phase before the first is over at once; a named barrier has no such wait, nor
        has who waits for an MMA's result or operand, beginning with the first phase.
        """
        stage_ring = self._barriers_of(operation)[0][0]
        maker = self._maker(stage_ring)
        phased = operation.name == WAIT and bool(self._arriving)
        if stage_ring[0] == _HARDWARE or (phased and self._first(self._operand(operation, 1)) == 0):
            return 0
        match = re.search(r"memdesc<(\d+)x\d+xi64", maker.rest if maker else "") if stage_ring in self._shared else None
        return int(match.group(1)) if match else 1

    def _find_first_uses(self) -> dict[int, dict[str, None]]:
        """Operation -> what was loaded into registers and is used there first: where a warp waits for it.

        What a loop or a branch hands on is not used by that: a load for the next iteration is used where that iteration
        uses it.
        """
        loads = {(_line(op.parent), op.results[0]): op for op in self._named(*REGISTER_LOADS) if op.results}
        uses: dict[int, dict[str, None]] = {}

        def take(op: Operation, value: Value) -> None:
            if load := loads.pop(value, None):
                uses.setdefault(id(op), {})[self.source(load)] = None

        read = [
            (op, self._resolve(op.parent, name))
            for op in self._operations
            if op.name not in _HANDING_ON
            for name in (_bounds(op) if op.name == "scf.for" else op.operands)
        ]
        for op, value in read:
            take(op, value)
        for op, value in read if loads else []:
            for origin in self._origins(value):
                take(op, origin)
        return uses

    def leaves(self, wait: Operation) -> int | None:
        """How many MMAs of its own warp group a wait for an mbarrier leaves in flight; None if it waits for none."""
        return self._left.get(id(wait))

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
            op, (_, name) = self._maker(value), value
            if op is not None:
                attributes = re.sub(r"%[\w$.#-]+", "", op.rest.partition(" : ")[0])
                operands = (written(self._operand(op, index), inside) for index in range(len(op.operands)))
                return f"{op.name}{attributes}#{name.partition('#')[2]}({','.join(operands)})"
            if value in self._passed_as:
                return f"carried({','.join(written(source, inside) for source in self._passed_as[value])})"
            if loop := self._counters.get(value):
                bounds = (written(self._resolve(loop.parent, bound), inside) for bound in _bounds(loop))
                return f"counter({','.join(bounds)})"
            return name

        places: dict[tuple[str, str], set[int]] = {}
        for op in self._named("tt.load", "tt.descriptor_load"):
            addresses = range(1 if op.name == "tt.load" else len(op.operands))
            key = self.source(op), ",".join(written(self._operand(op, index)) for index in addresses)
            branch = next((owner for owner in _around(op) if owner.name == "scf.if"), op)
            places.setdefault(key, set()).add(branch.line)
        times: dict[str, int] = {}
        for (source, _), lines in places.items():
            if len(lines) > 1:
                times[source] = max(times.get(source, 0), len(lines))
        return times

    def uses(self, operation: Operation) -> tuple[str, ...]:
        """What was loaded into registers and is used here for the first time."""
        return tuple(self._first_uses.get(id(operation), ()))

    def fields(self, operation: Operation) -> dict[str, str]:
        """`operation`, and `product`, `buffer` and `state` as far as they apply."""
        name = operation.name
        fields = {"operation": name.rpartition(".")[2]}
        if name in MMAS:
            fields["product"] = self._mmas[id(operation)]
        elif self.completes(operation):
            fields["product"] = "+".join(self._arriving[self.barrier(operation)]) or "tcgen05"
        elif name == COMMIT:
            stage_rings = self.arrives(operation)
            fields["product"] = "+".join(mma for stage_ring in stage_rings for mma in self._arriving[stage_ring])
        elif name in _TENSOR_MEMORY:
            fields["buffer"] = self._accumulated(operation)
        elif name == DOT_WAIT:
            fields["product"] = self._completed.get(id(operation)) or "wgmma"
        elif name == ASYNC_WAIT:
            fields["buffer"] = "+".join(dict.fromkeys(map(self.source, self._copies(operation)))) or "cp.async"
        elif self.waits(operation) or self.signals(operation):
            stage_ring = self.barrier(operation)
            nameless = "barrier" if name in (WAIT, ARRIVE) else "all" if stage_ring in self._meetings else "turn"
            unknown = "+".join(self._arriving.get(stage_ring, ())) or nameless
            fields["buffer"], fields["state"] = self._barriers.get(stage_ring, (unknown, ""))
        elif name == _ASSEMBLY:
            fields["buffer"] = "turn"  # a named barrier written in another way
        elif name == "tt.extern_elementwise":
            symbol = re.search(r'symbol = "(?:__nv_)?(\w+)"', operation.rest)
            fields["operation"] = symbol.group(1) if symbol else "library function"
        elif name == "tt.atomic_rmw":
            kind = operation.rest.partition(",")[0].strip()
            fields |= {
                "operation": {"fadd": "add", "exch": "exchange"}.get(kind, kind),
                "buffer": self.source(operation),
            }
        elif operation.operands:
            fields["buffer"] = self.source(operation)
        return fields


def pendings(wait: Operation) -> int:
    """How many MMAs a wait may leave in flight."""
    match = re.search(r"pendings = (\d+)", wait.rest)
    return int(match.group(1)) if match else 0


def _is_address(operation: Operation) -> bool:
    return operation.name in _ADDRESSES


def _named_barrier(operation: Operation) -> re.Match[str] | None:
    return _NAMED_BARRIER.match(operation.rest) if operation.name == _ASSEMBLY else None


def _line(region: Region | None) -> int:
    return _OUTSIDE if region is None else region.line


def _is_closed(region: Region) -> bool:
    return region.label.startswith("partition")


def _around(op: Operation) -> Iterator[Operation]:
    """The operations around an operation, the innermost first."""
    region = op.parent
    while region is not None and region.owner is not None:
        yield region.owner
        region = region.owner.parent


def _bounds(loop: Operation) -> tuple[str, ...]:
    """What an `scf.for` itself reads: its first and last number and its step, and nothing that it carries."""
    return tuple(re.findall(r"%[\w$.-]+(?:#\d+)?", loop.rest.partition(" iter_args")[0].partition("=")[2]))


def _yielded(region: Region) -> tuple[str, ...]:
    """What a region hands on at its end; of a while loop's first region what it hands to the second and out."""
    last = region.operations[-1] if region.operations else None
    if last is None or last.name not in ("scf.yield", "scf.condition"):
        return ()
    return last.operands[1:] if last.name == "scf.condition" else last.operands
