"""Reductions whole: the terms that loops, axes of a tile and operations one after another join."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kperf.diagnose.analyses.comparisons import axis_of
from kperf.diagnose.analyses.loops import read
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOOPS, inside
from kperf.ir.layouts import tensor_types
from kperf.ir.loops import loop_arguments, loop_begins
from kperf.ir.ttgir import Operation, Region
from kperf.ir.values import Values

_COMBINES = {
    "arith.addf": "sum", "arith.addi": "sum", "arith.mulf": "product", "arith.muli": "product",
    "arith.maxnumf": "maximum", "arith.maximumf": "maximum", "arith.maxsi": "maximum", "arith.maxui": "maximum",
    "arith.minnumf": "minimum", "arith.minimumf": "minimum", "arith.minsi": "minimum", "arith.minui": "minimum",
    "arith.ori": "or", "arith.andi": "and", "arith.xori": "exclusive or",
}  # fmt: skip
"""Associative operations -> what they give of many elements."""
_LARGER, _SMALLER = ("gt", "ge"), ("lt", "le")
_Name = tuple[Region | None, str]
_Node = tuple[int, int]
"""Line of an operation, and which of its results it is."""


@dataclass(frozen=True)
class Term:
    """What a reduction joins, in these loops, and along these axes of a tile."""

    maker: Operation
    name: str
    loops: tuple[Operation, ...]
    axes: tuple[int, ...]

    @property
    def length(self) -> int:
        """Elements along the axes."""
        types = tensor_types(self.maker.rest)
        return math.prod(types[-1].shape[axis] for axis in self.axes) if types else 1


@dataclass(frozen=True)
class Reduction:
    """All terms that operations of one kind join, the operations among them."""

    kind: str
    terms: list[Term]
    joining: dict[int, Operation]


def reductions(kernel: Kernel) -> Iterator[Reduction]:
    """Each whole: a reduction of the same kind whose result it joins is part of it."""
    nodes = {
        (op.line, place): op
        for op in kernel.named(*_COMBINES, "arith.select", "tt.reduce", "scf.for")
        for place in range(len(loop_begins(op)) - 1 if op.name == "scf.for" else 1)
    }
    kinds = {node: kind for node, op in nodes.items() if (kind := _kind(kernel.values, op, node[1])) is not None}
    parts = {
        found
        for node, kind in kinds.items()
        for name, _, _ in _parts(nodes[node], node[1])
        if (found := _node(kernel.values, name)) is not None and kinds.get(found) == kind
    }
    for node in sorted(kinds.keys() - parts):
        reduction = _reduction(kernel.values, kinds, nodes, node)
        if reduction is not None:
            yield reduction


def _kind(values: Values, op: Operation, place: int) -> str | None:
    """Of a reduction that a result of an operation is part of; None if it is of none."""
    if op.name == "arith.select":
        return _of_choice(values, op)
    if op.name == "tt.reduce":
        done = [one.name for one in inside(op) if one.name != "tt.reduce.return"]
        return _COMBINES.get(done[0]) if len(done) == len(op.operands) == 1 else None
    if op.name == "scf.for":
        end = _end(op, place)
        made = values.made(*end)
        return None if made is None else _kind(values, made, _place(end))
    return _COMBINES.get(op.name)


def _of_choice(values: Values, select: Operation) -> str | None:
    """`tl.where(x > y, x, y)` is a maximum."""
    compared, arms = values.maker(select, 0), select.operands[1:]
    if compared is None or compared.name not in ("arith.cmpf", "arith.cmpi") or set(arms) != set(compared.operands):
        return None
    order, in_order = compared.rest.split(",")[0].strip(), arms == compared.operands
    if order.endswith(_LARGER):
        return "maximum" if in_order else "minimum"
    return ("minimum" if in_order else "maximum") if order.endswith(_SMALLER) else None


def _parts(op: Operation, place: int) -> list[tuple[_Name, Operation | None, int | None]]:
    """What an operation of a reduction joins, each with the loop, or the axis of its tile, along which it does."""
    if op.name == "scf.for":
        return [((op.parent, loop_begins(op)[1 + place]), None, None), (_end(op, place), op, None)]
    if op.name == "tt.reduce":
        return [((op.parent, op.operands[0]), None, axis_of(op))]
    operands = op.operands[1:] if op.name == "arith.select" else op.operands
    return [((op.parent, operand), None, None) for operand in operands]


def _node(values: Values, name: _Name) -> _Node | None:
    made = values.made(*name)
    return None if made is None else (made.line, _place(name))


def _place(name: _Name) -> int:
    """Which of an operation's results it is."""
    return int(name[1].partition("#")[2] or 0)


def _end(loop: Operation, place: int) -> _Name:
    """What an iteration hands on to the next one."""
    return loop.regions[0], loop.regions[0].operations[-1].operands[place]


def _reduction(
    values: Values, kinds: Mapping[_Node, str], nodes: Mapping[_Node, Operation], root: _Node
) -> Reduction | None:
    """None where a loop does not carry what it joins, or uses it for other things too: a scan, or a recurrence."""
    found = Reduction(kinds[root], [], {})
    carrying: dict[str, Operation] = {}
    reached: set[str] = set()
    todo: list[tuple[_Node, tuple[Operation, ...], tuple[int, ...]]] = [(root, (), ())]
    while todo:
        node, loops, axes = todo.pop()
        op = nodes[node]
        found.joining[op.line] = op
        if op.name == "scf.for":
            carrying[loop_arguments(op)[1 + node[1]]] = op
        for name, loop, axis in _parts(op, node[1]):
            around = loops if loop is None else (*loops, loop)
            along = axes if axis is None else (*(one + (one >= axis) for one in axes), axis)
            part, made = _node(values, name), values.made(*name)
            if part is None or made is None:
                reached.add(name[1])
            elif kinds.get(part) == found.kind:
                todo.append((part, around, along))
            elif made.name != "arith.constant":
                found.terms.append(Term(made, name[1], around, along))
    return found if carrying.keys() <= reached and not _is_used(values, found, carrying) else None


def _is_used(values: Values, reduction: Reduction, carrying: Mapping[str, Operation]) -> bool:
    """Whether an iteration uses what was joined so far. carrying: the loops, by what each of them carries."""
    joining = [op for op in reduction.joining.values() if op.name not in ("tt.reduce", "scf.for")]
    choices = (values.maker(op, 0) for op in joining if op.name == "arith.select")
    lines = {*reduction.joining, *(one.line for one in choices if one is not None)}
    names = {*carrying, *(name for op in joining for name in op.results)}
    others = (op for loop in carrying.values() for op in inside(loop) if op.name not in (*LOOPS, "scf.yield"))
    return any(op.line not in lines and names & read(op) for op in others)
