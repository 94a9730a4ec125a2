"""Where the values of a TTGIR module come from: through arguments of regions, loops, branches, views and copies."""

import re
from collections.abc import Callable, Iterator

import numpy as np

from kperf.ir.arithmetic import apply
from kperf.ir.loops import carried_by, loop_arguments, passed
from kperf.ir.operations import DOT_WAIT
from kperf.ir.ttgir import Module, Operation, Region, line_of
from kperf.ir.values import constant

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
_DEEPEST = 12
"""Steps from a phase to the constants that it is made of."""

Value = tuple[int, str]
"""(line of the region that makes it, SSA name): sibling regions use the same names for other values."""

OUTSIDE = -1
"""In the place of a region's line: an argument of the function."""


class Sources:
    """What makes each value of a module, and of which other values it is one.

    operations: all of the function, in the order of the text. passed_as: argument of a region -> what is passed as it.
    counters: induction variable -> its loop.
    """

    def __init__(self, module: Module) -> None:
        """Follow every value to where it was made."""
        self.operations = list(module.walk())
        self._made_by: dict[Value, Operation] = {}
        for op in self.operations:
            for result in op.results:
                self._made_by[line_of(op.parent), result] = op
        self.counters = {(op.regions[0].line, loop_arguments(op)[0]): op for op in self.named("scf.for")}
        arguments = {**self._partition_arguments(module), **self._region_arguments()}
        # All are known before the first is resolved.
        self.passed_as: dict[Value, list[Value]] = {argument: [] for argument in arguments}
        for argument, sources in arguments.items():
            self.passed_as[argument] = [self.resolve(region, name) for region, name in sources]

    def _partition_arguments(self, module: Module) -> dict[Value, list[tuple[Region | None, str]]]:
        """Of closed partitions, which see nothing from around them but what they are given."""
        given: dict[Value, list[tuple[Region | None, str]]] = {}
        for group in module.warp_groups():
            owner, region = group.region.owner, group.region
            if is_closed(region) and owner is not None:
                arguments = re.findall(r"(%[\w$.-]+): ", region.header)
                for argument, value in zip(arguments, owner.operands, strict=False):
                    given[region.line, argument] = [(owner.parent, value)]
        return given

    def _region_arguments(self) -> dict[Value, list[tuple[Region | None, str]]]:
        """What a loop carries (its value before the loop, what each iteration hands on), and what a branch passes."""
        by_argument: dict[Value, list[tuple[Region | None, str]]] = {}
        for op in self.operations:
            if op.name in ("scf.for", "scf.while"):
                for region, argument, carried in carried_by(op):
                    if (region.line, argument) not in self.counters:
                        ways = [carried.first, *([carried.later] if carried.later is not None else [])]
                        by_argument[region.line, argument] = ways
            for region in op.regions:
                blocks = {block.label: block for block in region.blocks}
                for block in region.blocks:
                    branch = block.operations[-1].rest if block.operations else ""
                    for label, given in re.findall(r"\^(\w+)(?:\(([^)]*)\))?", branch):
                        names = re.findall(r"%[\w$.-]+(?:#\d+)?", given)
                        for argument, name in zip(blocks[label].arguments, names, strict=False):
                            by_argument.setdefault((region.line, argument), []).append((region, name))
        return by_argument

    def resolve(self, region: Region | None, name: str) -> Value:
        """The value that `name` means in a region: made there, or in the nearest region around it that makes one."""
        while region is not None:
            value = region.line, name
            made = (region.line, name.partition("#")[0]) in self._made_by
            if made or value in self.passed_as or value in self.counters:
                return value
            region = None if is_closed(region) or region.owner is None else region.owner.parent
        return OUTSIDE, name

    def operand(self, op: Operation, index: int) -> Value:
        """The value that an operand is; one outside without a name where there is none."""
        names = op.operands
        return self.resolve(op.parent, names[index]) if -len(names) <= index < len(names) else (OUTSIDE, "")

    def maker(self, value: Value) -> Operation | None:
        """The operation that makes a value; None of arguments."""
        return self._made_by.get((value[0], value[1].split("#")[0]))

    def origins(self, value: Value, through: Callable[[Operation], bool] = lambda _: False) -> Iterator[Value]:
        """The values from which this one comes: through arguments, loops, branches, waits, copies, views of memory,
        and the first operand of the operations that `through` lets pass."""
        visited: set[Value] = set()
        todo = [value]  # not by recursion: in an unrolled kernel thousands of values come one from another
        while todo:
            value = todo.pop()
            if value in visited:
                continue
            visited.add(value)
            sources = self.step(value, through)
            if sources is None:
                yield value[0], value[1].split("#")[0]
            else:
                todo += reversed(sources)

    def step(self, value: Value, through: Callable[[Operation], bool]) -> list[Value] | None:
        """The values of which this one is one; None if it is made here."""
        op = self.maker(value)
        result = int(value[1].partition("#")[2] or 0)
        sources = self.passed_as.get(value)
        if sources is not None or op is None:
            return sources
        if op.name in _TRANSPARENT or through(op):
            sources = [self.operand(op, 0)]
        elif op.name == DOT_WAIT:
            sources = [self.operand(op, result)]
        elif op.name == "arith.select":
            sources = [self.operand(op, 1), self.operand(op, 2)]
        elif op.name in ("scf.for", "scf.if", "scf.while"):
            regions = op.regions[:1] if op.name == "scf.while" else op.regions
            sources = [
                self.resolve(region, name) for region in regions for name in _passed(region)[result : result + 1]
            ]
        return sources

    def root(self, value: Value) -> Value:
        """The first of the values from which this one comes."""
        return next(self.origins(value), value)

    def constant(self, value: Value) -> int | None:
        """The number that a value always is; None if there is no such number."""
        numbers = set()
        for origin in self.origins(value):
            op = self.maker(origin)
            known = constant(op) if op is not None and op.name == "arith.constant" else None
            numbers.add(int(known.numbers) if known is not None and known.numbers.ndim == 0 else None)
        return numbers.pop() if len(numbers) == 1 else None

    def first(self, value: Value, depth: int = 0) -> int | None:
        """The number that a value is when a loop around it begins; None if constants do not say."""
        op = self.maker(value)
        if depth == _DEEPEST:
            return None
        if value in self.passed_as:
            return self.first(self.passed_as[value][0], depth + 1)
        if op is None or not op.name.startswith("arith.") or op.name == "arith.constant":
            return self.constant(value)
        numbers = [self.first(self.resolve(op.parent, name), depth + 1) for name in op.operands]
        known = [number for number in numbers if number is not None]
        if len(known) < len(numbers):
            return None
        evaluated = apply(op, [np.array(number) for number in known])
        return None if evaluated is None else int(evaluated)

    def named(self, *names: str) -> Iterator[Operation]:
        """The operations of these names, in the order of the text."""
        return (op for op in self.operations if op.name in names)


def is_closed(region: Region) -> bool:
    """Whether it is a partition, which sees nothing from around it but its arguments."""
    return region.label.startswith("partition")


def _passed(region: Region) -> tuple[str, ...]:
    """What a region hands on at its end."""
    return passed(region.operations[-1]) if region.operations else ()
