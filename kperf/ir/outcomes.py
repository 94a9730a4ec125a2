"""What an iteration of a loop computes if comparisons in it are decided: numbers, and values that stay as they were."""

import math
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from kperf.arch import operations
from kperf.ir.loops import loop_arguments, loop_begins, passed
from kperf.ir.ttgir import Module, Operation

Outcome = float | str
"""One number everywhere, or a name for what is not known: what has one name is the same."""

_SAME = (
    "tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans", "tt.fp_to_fp", "tt.unsplat", "arith.extf",
    "arith.truncf", "arith.extsi", "arith.extui", "arith.trunci", "arith.uitofp", "arith.sitofp", "arith.index_cast",
)  # fmt: skip
"""Of the same number as their operand; a sum that is rounded to the type in which it is kept stays."""
_CHOSEN = ("tt.join", "tt.cat", "tt.split", "tt.reduce", "tt.scan")
"""Of numbers of their operands, unless they compute others of them."""
_WRITES = operations("store", "atomic")
_MASKED = {"tt.store": 2, "tt.atomic_rmw": 2}
"""Place of the mask among the operands."""
LARGE = 1e3
"""Of a number that is added to scores: the exponential of what lies so far below others is 0."""
_LARGE_INTEGER = (1 << 31) - 1
"""With which a maximum or minimum of indices begins."""
_NUMBER = r"-?\d+(\.\d+[eE][-+]\d+)?"
_WRITTEN = {
    "true": 1.0, "false": 0.0, "0x7F800000": math.inf, "0x7C00": math.inf, "0x7F80": math.inf, "0xFF800000": -math.inf,
    "0xFC00": -math.inf, "0xFF80": -math.inf,
}  # fmt: skip
"""Infinity of float32, float16 and bfloat16."""
_ADDS = ("arith.addf", "arith.addi", "arith.ori", "arith.xori")
_SUBTRACTS = ("arith.subf", "arith.subi")
_MULTIPLIES = ("arith.mulf", "arith.muli", "arith.andi")
_ARITHMETIC = ("arith.addf", "arith.addi", "arith.subf", "arith.mulf", "arith.muli", "arith.divf", "arith.xori")
"""Of reductions and scans that compute other numbers than those that they are given."""
_MAXIMA = ("arith.maxnumf", "arith.maximumf", "arith.maxsi", "arith.maxui")
_MINIMA = ("arith.minnumf", "arith.minimumf", "arith.minsi", "arith.minui")
_EXPONENTIALS = ("math.exp", "math.exp2")
_COMPARED: dict[str, Callable[[float, float], bool]] = {
    "eq": operator.eq, "ne": operator.ne, "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le,
}  # fmt: skip


def constant_number(op: Operation) -> float:
    """What each element of a constant is; NaN if they differ."""
    written = re.match(r"\s*(?:\{[^}]*\}\s*)?(?:dense<([^>]*)>|(\S+))", op.rest)
    text = (written[1] or written[2]) if written is not None else ""
    return _WRITTEN[text] if text in _WRITTEN else float(text) if re.fullmatch(_NUMBER, text) else math.nan


class Outcomes:
    """An iteration of a loop, carried out on what is known. `decided`: how comparisons end, by their lines.

    Numbers that are large count as infinite, and scores that are not known as finite: they are numbers of an iteration
    that keeps something. Products with such a number have its sign.
    """

    def __init__(self, module: Module, loop: Operation, decided: Mapping[int, bool]) -> None:
        """Of a loop `scf.for`."""
        self._decided = decided
        self._known: dict[str, Outcome] = {}
        self._writes = False
        for op in module.walk():
            if op.name == "arith.constant" and not math.isnan(constant := constant_number(op)):
                self._known[op.results[0]] = constant
        carried, result = loop_arguments(loop)[1:], loop.results[0] if loop.results else ""
        self._run(loop.regions[0].operations)
        ends = [self._of_name(name) for name in passed(loop.regions[0].operations[-1])]
        names = [result] if len(ends) == 1 else [f"{result}#{place}" for place in range(len(ends))]
        used = {operand for op in module.walk() if op.line > loop.last_line for operand in op.operands}
        self.is_idle = not self._writes and all(
            end == begin for name, begin, end in zip(names, carried, ends, strict=True) if name in used
        )
        """Whether the iteration writes nothing, and leaves what is used after the loop as it was."""

    def _of_name(self, name: str) -> Outcome:
        return self._known.get(name, name)

    def _run(self, body: Iterable[Operation]) -> None:
        for op in body:
            found = self._of(op)
            for name in op.results:
                unknown = f"{name} of {op.line}"  # elsewhere another value may have this name
                self._known[name] = found[0] if found else unknown
                self._known |= {f"{name}#{place}": one for place, one in enumerate(found)}

    def _of(self, op: Operation) -> Sequence[Outcome]:
        """Of each result; empty if nothing is known."""
        operands = [self._of_name(name) for name in op.operands]
        if op.name in _WRITES or op.name == "tt.call":
            place = _MASKED.get(op.name, len(operands))
            self._writes |= place >= len(operands) or operands[place] != 0
        elif op.name in ("scf.if", "scf.for"):
            return self._of_branch(op, operands[0]) if op.name == "scf.if" else self._of_loop(op)
        elif op.name in _CHOSEN:
            return self._of_chosen(op, operands)
        elif op.name == "arith.cmpi" and op.line in self._decided:
            return (float(self._decided[op.line]),)
        else:
            for region in op.regions:
                self._run(region.operations)
            found = _fold(op, operands)
            return () if found is None else (found,)
        return ()

    def _of_chosen(self, op: Operation, operands: Sequence[Outcome]) -> Sequence[Outcome]:
        """Of what is chosen of equal numbers that number; of sums of 0 alone 0."""
        if op.name in ("tt.reduce", "tt.scan"):
            if any(one.name in _ARITHMETIC for region in op.regions for one in region.walk()):
                return operands if all(one == 0 for one in operands) else ()
            return [f"{place} of {op.line}" if isinstance(one, str) else one for place, one in enumerate(operands)]
        is_one = len(set(operands)) == 1 and not isinstance(operands[0], str)
        return (operands[0], operands[0]) if is_one else ()

    def _of_branch(self, op: Operation, condition: Outcome) -> Sequence[Outcome]:
        """Of both ways what they have in common, if it is not known which one is taken."""
        ways = op.regions
        if not isinstance(condition, str):
            ways = op.regions[:1] if condition else op.regions[1:]
        ends = []
        for region in ways:
            self._run(region.operations)
            ends.append([self._of_name(name) for name in passed(region.operations[-1])])
        return [
            way[0] if len(set(way)) == 1 else f"{place} of {op.line}"
            for place, way in enumerate(zip(*ends, strict=True))
        ]

    def _of_loop(self, loop: Operation) -> Sequence[Outcome]:
        """What no iteration changes is what it was before the loop."""
        names, begins = loop_arguments(loop)[1:], [self._of_name(name) for name in loop_begins(loop)[1:]]
        while True:
            self._known |= dict(zip(names, begins, strict=True))
            self._run(loop.regions[0].operations)
            ends = [self._of_name(name) for name in passed(loop.regions[0].operations[-1])]
            unknown = [f"{name} of {loop.line}" for name in names]
            kept = [begin if end == begin else other for begin, end, other in zip(begins, ends, unknown, strict=True)]
            if kept == begins:
                return begins
            begins = kept


def _fold(op: Operation, operands: Sequence[Outcome]) -> Outcome | None:  # noqa: PLR0911 (a case a kind of operation)
    """What an operation makes of its operands; None if that is not known."""
    if op.name == "arith.constant":
        return None if math.isnan(constant := constant_number(op)) else constant
    if op.name in _SAME:
        return operands[0]
    if op.name == "tt.load":
        other = operands[2] if len(operands) > 2 else 0.0
        return other if len(operands) > 1 and operands[1] == 0 else None
    if op.name == "arith.select":
        condition, *ways = operands
        return ways[0] if ways[0] == ways[1] or condition == 1 else ways[1] if condition == 0 else None
    if op.name in ("tt.dot", "math.fma"):
        return operands[2] if 0 in operands[:2] else None
    if op.name in _EXPONENTIALS and not isinstance(operands[0], str):
        return 0.0 if operands[0] <= -LARGE else 1.0 if operands[0] == 0 else None
    if op.name == "arith.negf" and not isinstance(operands[0], str):
        return -operands[0]
    return _of_two(op, *operands) if len(operands) == 2 else None


def _of_two(op: Operation, left: Outcome, right: Outcome) -> Outcome | None:  # noqa: PLR0911 (likewise)
    either = {left, right}
    if op.name in _ADDS:
        if op.name == "arith.xori" and left == right:
            return 0.0
        return right if left == 0 else left if right == 0 else _large(op, left, right)
    if op.name in _SUBTRACTS:
        if left == right:
            return 0.0
        large = _large(op, left, right)
        return left if right == 0 or large == left else -large if large is not None else None
    if op.name in _MULTIPLIES:
        is_and_of_numbers = op.name == "arith.andi" and not re.search(r"\bi1\b|xi1\b", op.rest)
        if 0 in either:
            return 0.0
        if 1 in either and not is_and_of_numbers:
            return right if left == 1 else left
        return _large(op, left, right)
    if op.name == "arith.divf":
        return left if left == 0 or right == 1 or _large(op, left, right) == left else None
    if op.name in (*_MAXIMA, *_MINIMA):
        sign, least = -1 if op.name in _MAXIMA else 1, LARGE if op.name.endswith("f") else _LARGE_INTEGER
        far = [one for one in (left, right) if not isinstance(one, str) and one * sign >= least]
        return left if left == right else right if left in far else left if right in far else None
    if op.name in ("arith.cmpf", "arith.cmpi"):
        return _compared(op, left, right)
    return None


def _large(op: Operation, left: Outcome, right: Outcome) -> float | None:
    """Beside a large number other floats do not count."""
    large = [one for one in (left, right) if not isinstance(one, str) and abs(one) >= LARGE]
    return large[0] if len(large) == 1 and op.name.endswith("f") else None


def _compared(op: Operation, left: Outcome, right: Outcome) -> float | None:
    """How a comparison ends: of numbers, of the same, and of floats with a large number."""
    compare = _COMPARED.get(op.rest.split(",")[0].strip()[1:]) or _COMPARED.get(op.rest.split(",")[0].strip())
    if compare is None:
        return None
    if left == right:
        return float(compare(0, 0))
    if _large(op, left, right) is not None or not (isinstance(left, str) or isinstance(right, str)):
        return float(compare(*(0.0 if isinstance(one, str) else one for one in (left, right))))
    return None
