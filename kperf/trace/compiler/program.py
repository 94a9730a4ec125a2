"""The structure of a traced kernel: its warp groups, its scopes by number, and what happens between any two records.

An *interval* lies between two records that can follow each other in one warp. It is a recorded region, or a gap named
by the operations in it; either way every cycle between a warp's first record and its last belongs to one interval.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from triton._C.libtriton import ir, passes

from kperf.errors import UsageError
from kperf.ir import compile as compiler
from kperf.ir.ttgir import Module, Operation, Region, WarpGroup
from kperf.trace.compiler.dataflow import COPY, DOT, DOT_WAIT, Dataflow, Value
from kperf.trace.compiler.instrument import LIFETIME, Rules, read_rules
from kperf.trace.compiler.traffic import Traffic

Mark = tuple[int, bool]
"""(scope number, whether it is the start): one record in the text."""

IntervalKind = Literal["tensor", "wait", "issue", "arithmetic", "load", "store", "signal", "other"]


@dataclass(frozen=True)
class Scope:
    """One pair of records. Proton numbers the pairs in the order of the text."""

    number: int
    name: str
    group: str
    loops: tuple[int, ...]
    """The lines of the loops around it, the innermost last."""

    @property
    def loop(self) -> int:
        """The line of the innermost loop around it, 0 if there is none."""
        return self.loops[-1] if self.loops else 0


@dataclass
class Interval:
    """What a warp does from one record to the next."""

    group: str
    name: str = "other"
    kind: IntervalKind = "other"
    waits: tuple[Value, ...] = ()
    signals: tuple[Value, ...] = ()
    """Rings at which it arrives, each as often as it does."""
    loads: tuple[tuple[str, Value], ...] = ()
    queue: tuple[str | int, ...] = ()
    """What it does to the tensor core's queue, in order: a name for each product that it issues, and for each wait how
    many of the products issued before it may be left in flight. Products complete in the order of their issue."""
    flop: int = 0
    """Floating-point operations of the products issued in it."""
    traffic: tuple[Traffic, ...] = ()
    """Bytes that its operations load and store."""

    @property
    def issues(self) -> tuple[str, ...]:
        """The products issued in it."""
        return tuple(step for step in self.queue if isinstance(step, str))


@dataclass(frozen=True)
class Group:
    """A warp group: `name` says what it does, `first_warp` where it runs."""

    name: str
    partition: str
    first_warp: int
    num_warps: int


@dataclass
class Program:
    """All that is known of a traced kernel before it runs."""

    kernel_name: str
    groups: list[Group]
    total_warps: int
    scopes: list[Scope]
    intervals: dict[tuple[Mark, Mark], Interval]
    stages: dict[Value, int] = field(default_factory=dict)
    """How many mbarriers each ring has."""

    def group(self, name: str) -> Group:
        """The warp group of that name."""
        return next(group for group in self.groups if group.name == name)


def read_program(text: str, rules: Rules | None = None) -> Program:
    """The structure of the traced module `text`, by this generator or edited by hand.

    Raises `UsageError` if it has no records, or if a record is not balanced by its partner in the same block.
    """
    rules = rules or read_rules()
    module = Module(text)
    dataflow = Dataflow(module)
    names = _group_names(module.warp_groups())
    marks: dict[int, Mark] = {}
    scopes: list[Scope] = []
    _number_block(module.function.regions[0], names, next(iter(names.values())), (), marks, scopes)
    if not scopes:
        raise UsageError("the TTGIR has no records: make a traced twin of it with `kperf instrument`")
    starts, total_warps = _allocate_warps(text)
    groups, intervals = [], {}
    for group in module.warp_groups():
        name, isolated = names[group.name], group.region.label.startswith("partition")
        first_warp = starts[int(group.name.removeprefix("partition"))] if isolated else 0
        groups.append(Group(name, group.name, first_warp, group.num_warps))
        found: dict[tuple[Mark, Mark], list[Operation]] = {}
        _flow(group.region if isolated else module.function.regions[0], {}, marks, found)
        for key, operations in found.items():
            intervals[key] = _interval(name, _scope_name(key, scopes), operations, dataflow, rules)
    return Program(module.kernel_name, groups, total_warps, scopes, intervals, _stages(module, dataflow))


def _group_names(groups: list[WarpGroup]) -> dict[str, str]:
    """Partition -> `consumer N` if it issues matrix products, `producer` if it loads, its own name otherwise."""
    names, consumers, producers = {}, 0, 0
    for group in groups:
        operations = {op.name for op in group.region.walk()}
        if group.name == "all":
            names[group.name] = "all warps"
        elif DOT in operations:
            names[group.name] = f"consumer {consumers}"
            consumers += 1
        elif COPY in operations:
            names[group.name] = f"producer {producers}" if producers else "producer"
            producers += 1
        else:
            names[group.name] = group.name
    return names


def _number_block(
    region: Region,
    names: dict[str, str],
    group: str,
    loops: tuple[int, ...],
    marks: dict[int, Mark],
    scopes: list[Scope],
) -> None:
    """Number the scopes of a block and of all inside it, in the order of the text; line of each record -> its mark."""
    opened: dict[str, int] = {}
    for op in region.operations:
        if op.name == "proton.record":
            match = re.match(r'\s*(start|end) "([^"]*)"', op.rest)
            if match is None:
                raise UsageError(f'line {op.line + 1}: a record reads `proton.record start "name"` or `end "name"`')
            word, name = match.groups()
            if word == "start" and name not in opened:
                opened[name] = len(scopes)
                scopes.append(Scope(len(scopes), name, group, loops))
                marks[op.line] = (opened[name], True)
            elif word == "end" and name in opened:
                marks[op.line] = (opened.pop(name), False)
            else:
                raise UsageError(f'line {op.line + 1}: the {word} of "{name}" has no partner in its block')
        for inner in op.regions:
            around = (*loops, op.line) if op.name in ("scf.for", "scf.while") else loops
            _number_block(inner, names, names.get(inner.label, group), around, marks, scopes)
    if opened:
        raise UsageError(f'the record of "{next(iter(opened))}" is started and not ended in its block')


def _flow(
    region: Region,
    pending: dict[Mark, list[Operation]],
    marks: dict[int, Mark],
    found: dict[tuple[Mark, Mark], list[Operation]],
) -> dict[Mark, list[Operation]]:
    """Collect the operations between records along all paths through a region.

    `pending`: last record met -> operations since, on the way in; the same on the way out is returned.
    """
    for op in region.operations:
        if op.line in marks:
            for before, operations in pending.items():
                seen = found.setdefault((before, marks[op.line]), [])
                seen += [operation for operation in operations if operation not in seen]
            pending = {marks[op.line]: []}
        elif op.name in ("scf.for", "scf.while"):
            once = pending
            for inner in op.regions:
                once = _flow(inner, _copy(once), marks, found)
            again = once
            for inner in op.regions:
                again = _flow(inner, _copy(again), marks, found)
            pending = _merge([pending, once, again])
        elif op.name == "ttg.warp_specialize":
            for inner in op.regions:  # the partitions' warps are other warps
                if inner.label == "default":
                    pending = _flow(inner, pending, marks, found)
        elif op.name == "scf.if":
            ways = [_flow(inner, _copy(pending), marks, found) for inner in op.regions]
            pending = _merge(ways if len(ways) > 1 else [pending, *ways])
        else:
            for operations in pending.values():
                operations.append(op)
    return pending


def _copy(pending: dict[Mark, list[Operation]]) -> dict[Mark, list[Operation]]:
    return {mark: list(operations) for mark, operations in pending.items()}


def _merge(ways: Iterable[dict[Mark, list[Operation]]]) -> dict[Mark, list[Operation]]:
    merged: dict[Mark, list[Operation]] = {}
    for way in ways:
        for mark, operations in way.items():
            known = merged.setdefault(mark, [])
            known += [op for op in operations if op not in known]
    return merged


def _scope_name(key: tuple[Mark, Mark], scopes: list[Scope]) -> str | None:
    (first, first_is_start), (second, second_is_start) = key
    return scopes[first].name if first == second and first_is_start and not second_is_start else None


def _interval(group: str, scope: str | None, operations: list[Operation], dataflow: Dataflow, rules: Rules) -> Interval:
    named = [(rules.name(op, dataflow), rule.kind) for op in operations if (rule := rules.find(op))]
    interval = Interval(group)
    if named:
        kinds = {kind for _, kind in named}
        ranked = ["wait", *rules.rank] if scope is not None and scope.startswith("wait") else [*rules.rank, "wait"]
        interval.kind = next(kind for kind in ranked if kind in kinds)
        silent = "signal" if kinds != {"signal"} else None
        interval.name = " + ".join(dict.fromkeys(name for name, kind in named if kind != silent))
    if scope is not None and not scope.startswith(LIFETIME):
        interval.name = scope
    interval.waits = tuple(dict.fromkeys(dataflow.barrier(op) for op in operations if dataflow.waits(op)))
    # Operations on different ways between the two records may be the same arrival.
    arrivals = dict.fromkeys(dataflow.arrivals(op) for op in operations if dataflow.signals(op))
    interval.signals = tuple(ring for ring, _ in arrivals)
    loaded: dict[Value, dict[str, None]] = {}
    for op in operations:
        if op.name == COPY:
            loaded.setdefault(dataflow.barrier(op), {})[dataflow.fields(op)["buffer"]] = None
    interval.loads = tuple(("+".join(sorted(buffers)), ring) for ring, buffers in loaded.items())
    interval.queue = tuple(step for op in operations for step in _queue(op, dataflow))
    interval.flop = sum(_flop(op) for op in operations if op.name == DOT)
    return interval


def _queue(operation: Operation, dataflow: Dataflow) -> list[str | int]:
    """An operation's steps in `Interval.queue`; a synchronous product is waited for where it is issued."""
    if operation.name == DOT:
        done: list[str | int] = [] if "isAsync = true" in operation.rest else [0]
        return [dataflow.fields(operation)["product"], *done]
    if operation.name == DOT_WAIT:
        pendings = re.search(r"pendings = (\d+)", operation.rest)
        return [int(pendings.group(1)) if pendings else 0]
    return []


def _flop(dot: Operation) -> int:
    shapes = [tuple(map(int, shape)) for shape in re.findall(r"<(\d+)x(\d+)x\w+", dot.rest.partition(" : ")[2])]
    (_, k), *_, (m, n) = shapes if len(shapes) > 1 else [(0, 0), (0, 0)]
    return 2 * m * n * k


def _stages(module: Module, dataflow: Dataflow) -> dict[Value, int]:
    users = [op for op in module.walk() if dataflow.waits(op) or dataflow.signals(op) or op.name == COPY]
    return {dataflow.barrier(op): dataflow.stages(op) for op in users}


def _allocate_warps(text: str) -> tuple[list[int], int]:
    """First warp of each partition, and how many warps the block has: Triton's own allocation, on a parsed copy."""
    module = compiler.parse_ttgir(text)
    manager = ir.pass_manager(module.context)
    passes.ttgpuir.add_allocate_warp_groups(manager)
    manager.run(module, "allocate_warp_groups")
    printed = str(module.str_nodebug())
    starts = re.search(r"warpGroupStartIds = array<i32: ([\d, ]+)>", printed)
    total = re.search(r'"ttg\.total-num-warps" = (\d+)', printed) or re.search(r'"ttg\.num-warps" = (\d+)', printed)
    if total is None:
        raise UsageError('the TTGIR has no "ttg.num-warps" attribute')
    return ([int(start) for start in starts.group(1).split(",")] if starts else []), int(total.group(1))
