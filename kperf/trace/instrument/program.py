"""The structure of a traced kernel: its warp groups, its scopes by number, and what happens between any two events.

An *interval* lies between two events that can follow each other in one warp. It is a recorded region, or a gap named
by the operations in it; either way every cycle between a warp's first event and its last belongs to one interval.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from kperf.arch import SM_90A, Arch, Dtype, completion
from kperf.compat.triton.modules import allocate_warp_groups
from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.dataflow import Dataflow
from kperf.ir.operations import ASYNC_COPY, COPY, DOT_WAIT, MMAS, REGISTER_LOADS, STORES, pendings, signals, waits
from kperf.ir.sources import Value
from kperf.ir.traffic import Traffic, traffic
from kperf.ir.ttgir import Graph, Module, Operation, Region, control_flow
from kperf.trace.instrument.events import LIFETIME, Rules, read_rules

_SCALED = re.compile(r"lhs = (\w+) rhs = (\w+)")
"""What the operands of an MMA with scales are."""

Probe = tuple[int, bool]
"""(scope number, whether it is the start): one event in the text."""

_LOOPS = ("scf.for", "scf.while")

IntervalKind = Literal["tensor", "wait", "issue", "arithmetic", "load", "store", "signal", "other"]


@dataclass(frozen=True)
class Scope:
    """One pair of events. Proton numbers the pairs in the order of the text."""

    number: int
    name: str
    group: str
    loops: tuple[int, ...]
    """The lines of the loops around it, the innermost last."""
    ends_tile: bool = False
    """It stands in a branch of its loop that stores: the end of a tile, in a persistent kernel's flattened loops."""

    @property
    def loop(self) -> int:
        """The line of the innermost loop around it, 0 if there is none."""
        return self.loops[-1] if self.loops else 0


_DTYPES: dict[str, Dtype] = {"bf16": "bf16", "f16": "fp16", "f32": "tf32", "f64": "fp64", "i8": "int8", "ui8": "int8"}

Instruction = Literal["tcgen05", "wgmma", "mma", "FMA"]
"""What computes an MMA: tensor cores, in the background (wgmma, tcgen05) or over when it is issued (mma.sync, MFMA); or
FMAs without tensor cores."""


@dataclass(frozen=True)
class Mma:
    """One MMA: what it is called, its floating-point (or integer) operations, its operands' type."""

    name: str
    flop: int
    dtype: Dtype
    instruction: Instruction = "wgmma"


@dataclass(frozen=True)
class Part:
    """One kind of work of an interval, and what it is called."""

    name: str
    kind: IntervalKind
    operation: str = ""
    """Of TTGIR, the first one of that name."""


@dataclass
class Interval:
    """What a warp does from one event to the next."""

    group: str
    name: str = "other"
    kind: IntervalKind = "other"
    waits: tuple[Value, ...] = ()
    """Stage rings for which it waits: of barriers, or the buffers that cp.async fills."""
    signals: tuple[Value, ...] = ()
    """Stage rings at which it arrives, each as often as it does."""
    loads: tuple[tuple[str, Value], ...] = ()
    """What it loads into shared memory, and the stage ring for which one waits to have it."""
    uses: tuple[str, ...] = ()
    """What was loaded into registers and is used in it for the first time: here the warp waits for those loads."""
    queue: tuple[Mma | int, ...] = ()
    """What it does to the tensor core's queue, in order: each MMA that it issues, and for each wait how many of the
    MMAs issued before it may be left in flight. MMAs complete in the order of their issue."""
    traffic: tuple[Traffic, ...] = ()
    """Bytes that its operations load and store."""
    arrives: tuple[Value, ...] = ()
    """Stage rings at which the tensor core arrives when all MMAs are done that the group issued up to its end."""
    parts: tuple[Part, ...] = ()
    """All kinds of work that its operations do, in the order of the program; `kind` is that of the region's colour. A
    synchronous MMA that needs what was just loaded waits for the load first, so that is a part too."""

    source: tuple[str, int] | None = None
    """File and line of its first operation that has a name, where the text has locations."""

    @property
    def issues(self) -> tuple[str, ...]:
        """Names of the MMAs issued in it."""
        return tuple(step.name for step in self.queue if isinstance(step, Mma))

    @property
    def flop(self) -> int:
        """Operations of the MMAs issued in it."""
        return sum(step.flop for step in self.queue if isinstance(step, Mma))


Issued = Literal["MMAs", "loads"]
"""What a warp group sets going and does not do itself: MMAs, loads into shared memory."""


@dataclass(frozen=True)
class Group:
    """A warp group: `name` says what it does, `first_warp` where it runs, and where it is recorded.

    `issues`: one of them, both or neither. Where all warps run the same code there are two
    groups of one partition, `all warps` and `last warp`, which tells how far a CTA's warps are apart.
    """

    name: str
    partition: str
    first_warp: int
    num_warps: int
    issues: frozenset[Issued]


@dataclass(frozen=True)
class Loop:
    """A loop of the program: what one iteration of it issues itself, not counting the loops inside it.

    Of two branches that cannot both be taken the one with more operations counts.
    """

    line: int
    mmas: tuple[Mma, ...]
    loads: tuple[str, ...]

    @property
    def flop(self) -> int:
        """Operations of an iteration's MMAs."""
        return sum(mma.flop for mma in self.mmas)


@dataclass
class Program:
    """All that is known of a traced kernel before it runs."""

    kernel_name: str
    groups: list[Group]
    total_warps: int
    scopes: list[Scope]
    intervals: dict[tuple[Probe, Probe], Interval]
    stages: dict[Value, int] = field(default_factory=dict)
    """How many mbarriers each stage ring has."""
    loops: dict[int, Loop] = field(default_factory=dict)
    """Line of a loop (`Scope.loops`) -> what it does."""
    arch: Arch = SM_90A
    """What it is compiled for."""
    rereads: Mapping[str, int] = field(default_factory=dict)
    """An argument -> at how many places the kernel loads the same addresses of it, where that is more than one."""

    def cycles(self, mma: Mma) -> float:
        """What an SM takes for an MMA at the peak rate of its type."""
        return mma.flop / self.arch.flop_per_cycle[mma.dtype]

    def group(self, name: str) -> Group:
        """The warp group of that name."""
        return next(group for group in self.groups if group.name == name)

    def code(self, name: str) -> str:
        """The group under whose name scopes and intervals list what this one runs: the first of its partition."""
        partitions = {group.partition: group.name for group in reversed(self.groups)}
        return next((partitions[group.partition] for group in self.groups if group.name == name), name)


def read_program(text: str, rules: Rules | None = None, located: str | None = None) -> Program:
    """The structure of the traced module `text`, by this generator or edited by hand.

    `located`: the module before it was instrumented, as it was compiled, with the locations of its operations.

    Raises `UsageError` if it has no events, or if one is not balanced by its partner in the same block.
    """
    rules = rules or read_rules()
    module = Module(text)
    if located is not None:
        _locate(module, Module(located))
    dataflow = Dataflow(module, rules.aliases)
    roles = _roles(module)
    names = {partition: name for partition, (name, _) in roles.items()}
    probes: dict[int, Probe] = {}
    scopes: list[Scope] = []
    _number_region(module.function.regions[0], names, next(iter(names.values())), (), False, probes, scopes)
    if not scopes:
        raise UsageError("the TTGIR has no events: make an instrumented kernel of it with `kperf instrument`")
    starts, total_warps = _allocate_warps(text)
    intervals = {}
    for group in module.warp_groups():
        region = group.region if group.region.label.startswith("partition") else module.function.regions[0]
        for key, operations in _between(region, probes).items():
            intervals[key] = _interval(names[group.name], _scope_name(key, scopes), operations, dataflow, rules)
    loops = {op.line: _loop(op, dataflow) for op in module.walk() if op.name in _LOOPS}
    groups = _groups(module, roles, starts)
    return Program(
        module.kernel_name,
        groups,
        total_warps,
        scopes,
        intervals,
        _stages(module, dataflow),
        loops,
        module.arch,
        dataflow.loads.rereads(),
    )


def _locate(module: Module, original: Module) -> None:
    """Give a module's operations the locations that those of the original have, which are the same but for events."""
    operations = [op for op in module.walk() if op.name != "proton.record"]
    located = list(original.walk())
    if [op.name for op in operations] == [op.name for op in located]:
        for op, same in zip(operations, located, strict=True):
            op.location = same.location


def _roles(module: Module) -> dict[str, tuple[str, frozenset[Issued]]]:
    """Partition -> its name, and what it issues.

    It is a `consumer N` if it issues MMAs, a `producer` if it only loads, and keeps its own name otherwise.
    """
    roles = {}
    counts: Counter[str] = Counter()
    for group in module.warp_groups():
        operations = {op.name for op in group.region.walk()}
        kinds: dict[Issued, set[str]] = {"MMAs": set(MMAS), "loads": {COPY, ASYNC_COPY}}
        issues = frozenset(kind for kind, names in kinds.items() if operations & names)
        role = "consumer" if "MMAs" in issues else "producer" if issues else group.name
        if group.name == "all":
            name = "all warps"
        else:
            name = f"{role} {counts[role]}" if role == "consumer" or counts[role] else role
            counts[role] += 1
        roles[group.name] = (name, issues)
    return roles


def _groups(module: Module, roles: dict[str, tuple[str, frozenset[Issued]]], starts: list[int]) -> list[Group]:
    groups = []
    for group in module.warp_groups():
        name, issues = roles[group.name]
        isolated = group.region.label.startswith("partition")
        first = starts[int(group.name.removeprefix("partition"))] if isolated else 0
        groups.append(Group(name, group.name, first, group.num_warps, issues))
        if group.name == "all" and group.num_warps > 1:
            groups.append(Group("last warp", group.name, group.num_warps - 1, 1, issues))
    return groups


def _loop(loop: Operation, dataflow: Dataflow) -> Loop:
    issued = [op for region in loop.regions for op in _issued(region)]
    loads = (dataflow.names.source(op) for op in issued if op.name not in MMAS)
    return Loop(
        loop.line,
        tuple(_mma(op, dataflow) for op in issued if op.name in MMAS),
        tuple(dict.fromkeys(loads)),
    )


def _issued(region: Region) -> list[Operation]:
    """MMAs and loads of one pass through a region, but for its loops."""
    issued = []
    for op in region.operations:
        if op.name == "scf.if":
            ways = [_issued(way) for way in op.regions]
            issued += max(ways, key=lambda way: sum(_flop(op) for op in way if op.name in MMAS))
        elif op.name in {*MMAS, COPY, ASYNC_COPY, *REGISTER_LOADS}:
            issued.append(op)
    return issued


def _number_region(
    region: Region,
    names: dict[str, str],
    group: str,
    loops: tuple[int, ...],
    ends_tile: bool,
    probes: dict[int, Probe],
    scopes: list[Scope],
) -> None:
    """Number the scopes of a region and all inside it, in the order of the text; line of each event -> its probe."""
    for block in region.blocks:
        opened: dict[str, int] = {}
        for op in block.operations:
            if op.name == "proton.record":
                match = re.match(r'\s*(start|end) "([^"]*)"', op.rest)
                if match is None:
                    raise UsageError(f'line {op.line + 1}: a record reads `proton.record start "name"` or `end "name"`')
                word, name = match.groups()
                if word == "start" and name not in opened:
                    opened[name] = len(scopes)
                    scopes.append(Scope(len(scopes), name, group, loops, ends_tile))
                    probes[op.line] = (opened[name], True)
                elif word == "end" and name in opened:
                    probes[op.line] = (opened.pop(name), False)
                else:
                    raise UsageError(f'line {op.line + 1}: the {word} of "{name}" has no partner in its block')
            for inner in op.regions:
                is_loop = op.name in _LOOPS
                around = (*loops, op.line) if is_loop else loops
                storing = op.name == "scf.if" and bool(loops) and any(inside.name in STORES for inside in op.walk())
                ends = not is_loop and (ends_tile or storing)
                _number_region(inner, names, names.get(inner.label, group), around, ends, probes, scopes)
        if opened:
            raise UsageError(f'the record of "{next(iter(opened))}" is started and not ended in its block')


def _between(region: Region, probes: dict[int, Probe]) -> dict[tuple[Probe, Probe], list[Operation]]:
    """The operations between any two events that can follow each other in a region, in the order of the program."""
    graph = control_flow(region)
    between = {}
    for op in region.walk():
        if op.line in probes and op.line in graph:
            for last, operations in _ways(op, graph, probes):
                between[probes[op.line], probes[last]] = operations
    return between


def _ways(start: Operation, graph: Graph, probes: dict[int, Probe]) -> list[tuple[int, list[Operation]]]:
    """Line of each event that can be the next after `start`, and what is done on the ways to it."""
    order: list[Operation] = []
    before: dict[int, set[int]] = {}
    ends: dict[int, None] = {}
    visited: set[int] = set()
    # Depth first, leaving loops before entering them, so that in reverse a body stands before what follows it.
    stack: list[tuple[Operation, bool]] = [(start, False)]
    while stack:
        op, done = stack.pop()
        if done:
            order.append(op)
            continue
        if op.line in visited:
            continue
        visited.add(op.line)
        stack.append((op, True))
        for following in graph[op.line]:
            before.setdefault(following.line, set()).add(op.line)
            if following.line in probes:
                ends[following.line] = None
            else:
                stack.append((following, False))
    inside = [op for op in reversed(order) if op is not start]
    leading = {end: _leading_to(end, before, start.line) for end in sorted(ends)}
    return [(end, [op for op in inside if op.line in lines]) for end, lines in leading.items()]


def _leading_to(end: int, before: dict[int, set[int]], start: int) -> set[int]:
    reached: set[int] = set()
    todo = [end]
    while todo:
        for line in before.get(todo.pop(), set()) - reached - {start}:
            reached.add(line)
            todo.append(line)
    return reached


def _scope_name(key: tuple[Probe, Probe], scopes: list[Scope]) -> str | None:
    (first, first_is_start), (second, second_is_start) = key
    return scopes[first].name if first == second and first_is_start and not second_is_start else None


def _interval(group: str, scope: str | None, operations: list[Operation], dataflow: Dataflow, rules: Rules) -> Interval:
    named = [(rules.name(op, dataflow), rule.kind) for op in operations if (rule := rules.find(op, dataflow))]
    interval = Interval(group)
    interval.uses = tuple(dict.fromkeys(use for op in operations for use in dataflow.loads.uses(op)))
    interval.parts = _parts(operations, dataflow, rules)
    interval.source = next((frame for op in operations if rules.find(op, dataflow) and (frame := _frame(op))), None)
    if named:
        kinds = {kind for _, kind in named}
        ranked = ["wait", *rules.rank] if scope is not None and scope.startswith("wait") else [*rules.rank, "wait"]
        interval.kind = next(kind for kind in ranked if kind in kinds)
        silent = "signal" if kinds != {"signal"} else None
        interval.name = " + ".join(dict.fromkeys(name for name, kind in named if kind != silent))
        if interval.uses and interval.kind in ("tensor", "issue"):  # an MMA begins when its operands are there
            interval.kind = "wait"
    elif interval.uses:
        interval.kind = "wait"
        interval.name = f"use {'+'.join(interval.uses)}"
    if scope is not None and not scope.startswith(LIFETIME):
        interval.name = scope
    # Who waits for MMAs of its own waits for the queue.
    awaiting = [op for op in operations if dataflow.queues.leaves(op) is None]
    interval.waits = tuple(dict.fromkeys(stage_ring for op in awaiting for stage_ring in dataflow.guards.awaited(op)))
    interval.arrives = tuple(stage_ring for op in operations for stage_ring in dataflow.barriers.arrives(op))
    # Operations on different ways between the two events may be the same arrival.
    arrivals = dict.fromkeys(dataflow.barriers.arrivals(op) for op in operations if signals(op))
    interval.signals = tuple(stage_ring for stage_ring, _ in arrivals)
    loaded: dict[Value, dict[str, None]] = {}
    for op in operations:
        if op.name in (COPY, ASYNC_COPY):
            loaded.setdefault(dataflow.barriers.filled(op), {})[dataflow.names.source(op)] = None
    interval.loads = tuple(("+".join(sorted(buffers)), stage_ring) for stage_ring, buffers in loaded.items())
    moved = (traffic(op, dataflow.names.source(op)) for op in operations)
    interval.traffic = tuple(part for part in moved if part is not None)
    interval.queue = tuple(step for op in operations for step in _queue(op, dataflow))
    return interval


def _frame(op: Operation) -> tuple[str, int] | None:
    """File and line of an operation: of an inlined call, in the user's source."""
    frame = op.location.frame if op.location else None
    return (frame.file, frame.line) if frame else None


def _parts(operations: list[Operation], dataflow: Dataflow, rules: Rules) -> tuple[Part, ...]:
    """What is done one after another: of each kind of work all names, where its first operation stands."""
    names: dict[str, Part] = {}
    used: dict[str, None] = {}
    for op in operations:
        if uses := dataflow.loads.uses(op):
            used |= dict.fromkeys(uses)
            names["use"] = Part(f"use {'+'.join(used)}", "wait")
        if rule := rules.find(op, dataflow):
            name = rules.name(op, dataflow)
            names.setdefault(name, Part(name, rule.kind, op.name))
    return tuple(names.values())


def _queue(operation: Operation, dataflow: Dataflow) -> list[Mma | int]:
    """An operation's steps in `Interval.queue`; a synchronous MMA is waited for where it is issued."""
    if operation.name in MMAS:
        way = completion(operation.name)
        synchronous = way == "sync" or (way == "wgmma" and "isAsync = true" not in operation.rest)
        done: list[Mma | int] = [0] if synchronous else []
        return [_mma(operation, dataflow), *done]
    if operation.name == DOT_WAIT:
        return [pendings(operation)]
    left = dataflow.queues.leaves(operation)
    return [] if left is None else [left]


def _mma(dot: Operation, dataflow: Dataflow) -> Mma:
    types = dot.rest.partition(" : ")[2]
    element = re.search(r"<(?:\d+x)+([a-z]\w*)", types)
    name = element.group(1) if element else ""
    dtype: Dtype = "fp8" if name.startswith("f8") else _DTYPES.get(name, "fp32")
    way = completion(dot.name)
    instruction: Instruction = "mma" if way is None or way == "sync" else way
    if scaled := _SCALED.search(dot.rest):
        dtype = "fp4" if set(scaled.groups()) == {"e2m1"} else "fp8"
    elif dot.name == "tt.dot" and (_is_blocked(types) or (dtype == "tf32" and "inputPrecision = tf32" not in dot.rest)):
        instruction, dtype = "FMA", "fp64" if dtype == "fp64" else "fp32"
    return Mma(dataflow.fields(dot)["product"], _flop(dot), dtype, instruction)


def _is_blocked(types: str) -> bool:
    """Whether an MMA's result has a layout of plain registers: then no tensor core computes it."""
    return re.search(r"-> tensor<[^>]*#(?:ttg\.)?blocked", types) is not None


def _flop(dot: Operation) -> int:
    """2 m n k, and of a batch of MMAs all of them; two numbers of 4 bits lie in one element."""
    types = dot.rest.partition(" : ")[2]
    shapes = [tuple(map(int, shape.split("x")[:-1])) for shape in re.findall(r"<((?:\d+x){2,})", types)]
    if not shapes:
        return 0
    scaled = _SCALED.search(dot.rest)
    packed = 2 if scaled is not None and scaled.group(1) == "e2m1" else 1
    result = shapes[2] if completion(dot.name) == "tcgen05" else shapes[-1]  # after it come scales
    return 2 * math.prod(result) * shapes[0][-1] * packed


def _stages(module: Module, dataflow: Dataflow) -> dict[Value, int]:
    awaiting = [op for op in module.walk() if waits(op) and dataflow.guards.awaited(op)]
    others = [op for op in module.walk() if signals(op) or op.name == COPY]
    # The first wait in the text comes last here: it says more than how many barriers there are.
    return {dataflow.barriers.barrier(op): dataflow.guards.stages(op) for op in [*others, *reversed(awaiting)]}


def _allocate_warps(text: str) -> tuple[list[int], int]:
    """First warp of each partition, and how many warps the CTA has: Triton's own allocation, on a parsed copy."""
    module = compiler.parse_ttgir(text)
    allocate_warp_groups(module)
    printed = str(module.str_nodebug())
    starts = re.search(r"warpGroupStartIds = array<i32: ([\d, ]+)>", printed)
    total = re.search(r'"ttg\.total-num-warps" = (\d+)', printed) or re.search(r'"ttg\.num-warps" = (\d+)', printed)
    if total is None:
        raise UsageError('the TTGIR has no "ttg.num-warps" attribute')
    return ([int(start) for start in starts.group(1).split(",")] if starts else []), int(total.group(1))
