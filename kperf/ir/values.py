"""What the integers and addresses of a TTGIR module are in one CTA: its index arithmetic, carried out.

Arguments, and whatever is read from memory, are sampled: an argument that is a multiple of 16 by the compiler's own
knowledge is one, another is not; sizes are large, so that masks let through what lies inside. Loops stand at their
first iteration. What depends on data that was loaded is marked: no pattern can be read from it.
"""

import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from kperf.ir.arithmetic import POINTER, SHIFTS, apply
from kperf.ir.layouts import element_bytes, split_commas, tensor_types
from kperf.ir.loops import BOUNDS, Carried, carried_by, loop_begins, passed
from kperf.ir.ttgir import Module, Operation, Region, line_of

_LARGEST = 1 << 20
"""Elements of a tensor that are computed; larger ones are unknown."""
READS = ("tt.load", "tt.gather", "amdg.buffer_load")
_PROGRAMS = {"x": 5, "y": 3, "z": 2}
_ANY_GRID = dict.fromkeys("xyz", 1024)
DISTANCE = 1 << 40
"""From one pointer argument to the next."""
_ANY_BYTE, _ANY_NUMBER = (0, 1 << 8), (1 << 12, 1 << 24)
"""Ends of the numbers that may have been read."""
_LETTERS = {"i1": "b", "i32": "i", "i64": "l"}
_MOST_DIMENSIONS = 5
"""Of a tensor descriptor."""


@dataclass(frozen=True)
class Value:
    """Numbers of a tensor (or of a scalar, an array without dimensions).

    loaded: it depends on what was read from memory. scattered: so do the distances between its elements, not only where
    the first one is. arguments: those of the function that it depends on. iterations: the lines of the loops whose
    iteration it depends on. program: it depends on which CTA this is.
    """

    numbers: NDArray[np.int64]
    loaded: bool = False
    arguments: frozenset[str] = frozenset()
    iterations: frozenset[int] = frozenset()
    program: bool = False
    scattered: bool = False

    def moved(self, offsets: "Value", size: int) -> "Value":
        """Addresses that lie `offsets` elements of `size` bytes further."""
        return joined(self.numbers + offsets.numbers * size, [self, offsets])


@dataclass(frozen=True)
class Argument:
    """An argument of the function: its type, and the attributes that the compiler has of its value."""

    name: str
    type: str
    divisible: bool

    @property
    def is_pointer(self) -> bool:
        """Whether it is the address of a tensor."""
        return self.type.startswith("!tt.ptr")


def arguments_of(module: Module, multiples: frozenset[str] = frozenset()) -> list[Argument]:
    """The arguments of the module's function, in order; `multiples`: names of some that are taken as divisible."""
    inside = module.function.rest.partition("(")[2].rpartition(" attributes ")[0] or module.function.rest
    arguments = []
    for part in split_commas(inside):
        match = re.match(r"(%[\w$.-]+): (\S.*?)(?: \{(.*)\})?\)?$", part)
        if match is not None:
            known = re.search(r"tt\.divisibility = (\d+)", match[3] or "")
            divisible = match[1].removeprefix("%") in multiples or (known is not None and int(known[1]) % 16 == 0)
            arguments.append(Argument(match[1], match[2], divisible))
    return arguments


def inner_strides(module: Module) -> dict[str, str]:
    """Of descriptors that are made on the host: the argument that is the last stride, which is 1, and the pointer's.

    Names without `%`. A target without TMA gets a descriptor in parts (Triton's `make_tensordesc_arg`): pointer, shape
    and strides in 64 bits, whether NaN pads (from 3.7 on, whether tf32 is rounded), shape in 32 bits, strides again.
    """
    arguments = arguments_of(module)
    kinds = "".join("p" if "!tt.ptr" in argument.type else _LETTERS.get(argument.type, "-") for argument in arguments)
    return {
        arguments[match.start() + 2 * rank].name.removeprefix("%"): arguments[match.start()].name.removeprefix("%")
        for rank in range(1, _MOST_DIMENSIONS + 1)
        for match in re.finditer(f"pl{{{2 * rank}}}b{{1,2}}i{{{rank}}}l{{{rank}}}", kinds)
    }


class Values:
    """The numbers behind the SSA names of a module, each computed when it is first asked for."""

    def __init__(
        self,
        module: Module,
        known: dict[str, int] | None = None,
        next_along: str = "",
        multiples: frozenset[str] = frozenset(),
        first_along: str = "",
        *,
        grid: Mapping[str, int] | None = None,
    ) -> None:
        """`known`: the numbers of arguments, by name without `%`, where a launch says them.

        `multiples`: arguments that are taken as multiples of 16, beside those that the compiler knows to be some.
        The CTA is one in the middle of the grid, or the next one along an axis of it, `x`, `y` or `z`, and the first
        one along the axes `first_along`. `grid`: CTAs along each axis: along one with a single CTA there is no other.
        """
        self._grid = grid or _ANY_GRID
        self._alone = "".join(axis for axis, count in self._grid.items() if count == 1)
        programs = {axis: place + (axis == next_along) for axis, place in _PROGRAMS.items()}
        self._programs = programs | dict.fromkeys(first_along + self._alone, 0)
        self._made: dict[tuple[int, str], Operation] = {}
        self._carried: dict[tuple[int, str], Carried] = {}
        for op in module.walk():
            for result in op.results:
                self._made[line_of(op.parent), result] = op
            if op.name in ("scf.for", "scf.while"):
                self._carried |= {(region.line, name): carried for region, name, carried in carried_by(op)}
        self._arguments = {argument.name: argument for argument in arguments_of(module, multiples)}
        self._sampled = {
            name: _sample(argument, place, (known or {}).get(name.removeprefix("%")))
            for place, (name, argument) in enumerate(self._arguments.items())
        }
        self._random = np.random.default_rng(0)
        self._found: dict[tuple[tuple[int, str], int], Value | None] = {}

    def operand(self, operation: Operation, index: int) -> Value | None:
        """The numbers of an operand; None if they are not integers or addresses, or not known."""
        names = operation.operands
        return self.of(operation.parent, names[index]) if index < len(names) else None

    def maker(self, operation: Operation, index: int) -> Operation | None:
        """The operation that makes an operand; None of arguments and of what loops carry."""
        names = operation.operands
        return self.made(operation.parent, names[index]) if index < len(names) else None

    def made(self, region: Region | None, name: str) -> Operation | None:
        """The operation that makes what has this name in a region; None of arguments and of what loops carry."""
        return self._made.get(self._resolve(region, name))

    def sources(
        self, operation: Operation, index: int, until: tuple[str, ...] = (), but: Container[int] = ()
    ) -> list[Operation]:
        """All operations from which an operand is computed, in whatever iteration or branch.

        Of operations named in `until` the operands are not followed. but: lines of operations that are left out, and
        what only these need.
        """
        by_line: dict[int, Operation] = {}
        visited: set[tuple[int, str]] = set()
        todo = [(operation.parent, operation.operands[index])] if index < len(operation.operands) else []
        while todo:
            region, name = todo.pop()
            key = self._resolve(region, name)
            if key in visited:
                continue
            visited.add(key)
            carried = self._carried.get(key)
            op = carried.loop if carried is not None else self._made.get(key)
            if op is None or op.line in but:
                continue
            by_line[op.line] = op
            if carried is not None:
                todo += [carried.first, *([carried.later] if carried.later is not None else [])]
            elif op.name not in until:
                todo += [(op.parent, operand) for operand in op.operands]
                ends = [(each, each.operations[-1]) for each in op.regions if each.operations]
                todo += [(each, operand) for each, end in ends for operand in end.operands]
        return list(by_line.values())

    def is_in(self, address: Value, pointer: str) -> bool:
        """Whether an address lies in the tensor of a pointer argument, which is far from all others."""
        base = self._sampled[f"%{pointer}"].numbers
        return bool(np.all(np.abs(address.numbers - base) < DISTANCE // 2))

    def _resolve(self, region: Region | None, name: str) -> tuple[int, str]:
        bare = name.partition("#")[0]
        while region is not None:
            for key in ((region.line, bare), (region.line, name)):
                if key in self._made or key in self._carried:
                    return key
            region = region.owner.parent if region.owner is not None else None
        return -1, bare

    def of(self, region: Region | None, name: str) -> Value | None:
        """Operands are computed before what is computed of them: a sort is a chain of a thousand operations."""
        asked = self._named(region, name)
        todo = [] if asked in self._found else [asked]
        begun: set[tuple[tuple[int, str], int]] = set()
        while todo:
            known = todo[-1]
            if known in begun:
                begun.remove(known)
                self._found[todo.pop()] = self._compute(*known)
            elif known in self._found:
                todo.pop()
            else:
                begun.add(known)
                self._found[known] = None  # of what depends on itself nothing is known
                todo += [key for need in self._needs(*known) if (key := self._named(*need)) not in self._found]
        return self._found[asked]

    def _named(self, region: Region | None, name: str) -> tuple[tuple[int, str], int]:
        """What makes a name, and which of its results that is."""
        return self._resolve(region, name), int(name.partition("#")[2] or 0)

    def _needs(self, key: tuple[int, str], place: int) -> list[tuple[Region | None, str]]:
        """What `_compute` asks for."""
        if key in self._carried:
            return [self._carried[key].first]
        op = self._made.get(key)
        if op is None or op.name in ("scf.for", "scf.if", "scf.while"):
            end = self._end(op, place) if op is not None else None
            return [] if end is None else [end]
        operands = op.operands[:1] if op.name in READS or "atomic" in op.name else op.operands
        return [(op.parent, operand) for operand in operands]

    def _compute(self, key: tuple[int, str], place: int) -> Value | None:
        if key in self._carried:
            first = self.of(*self._carried[key].first)
            if first is None:
                return None
            iterated = replace(first, iterations=first.iterations | {self._carried[key].loop.line})
            is_data = first.numbers.size > 1 and self._later_is_data(key)
            return replace(iterated, loaded=True, scattered=True) if is_data else iterated
        op = self._made.get(key)
        if op is None:
            return self._sampled.get(key[1])
        if op.name in ("scf.for", "scf.if", "scf.while"):
            return self._of_region(op, place)
        return self._of_operation(op)

    def _later_is_data(self, key: tuple[int, str]) -> bool:
        """Whether what a loop carries depends, after the first iteration, on a tile that was read: a search's ends."""
        visited: set[tuple[tuple[int, str], int]] = set()
        todo = [self._named(*later)] if (later := self._carried[key].later) is not None else []
        while todo:
            asked = todo.pop()
            if asked in visited:
                continue
            visited.add(asked)
            made, place = asked
            op = self._made.get(made)
            if made in self._carried:
                around = self._carried[made]
                todo += [self._named(*name) for name in (around.first, around.later) if name is not None]
            elif op is not None and op.name in READS:
                if tensor_types(op.rest):
                    return True
            elif op is not None:
                todo += [self._named(*name) for name in self._makers(op, place)]
        return False

    def _makers(self, op: Operation, place: int) -> list[tuple[Region | None, str]]:
        """What a result of an operation is computed of; of one with regions, what they hand on in its place."""
        if not op.regions:
            return [(op.parent, operand) for operand in op.operands]
        ends = [(each, passed(each.operations[-1])) for each in op.regions if each.operations]
        handed: list[tuple[Region | None, str]] = [(each, names[place]) for each, names in ends if place < len(names)]
        return handed + ([(op.parent, op.operands[0])] if op.name == "scf.if" else [])

    def _of_region(self, op: Operation, place: int) -> Value | None:
        """What a loop ends with is taken to be what it began with, a branch's the first way's."""
        end = self._end(op, place)
        return self.of(*end) if end is not None else None

    def _end(self, op: Operation, place: int) -> tuple[Region | None, str] | None:
        if op.name == "scf.for":
            carried = loop_begins(op)[1:]
            return (op.parent, carried[place]) if place < len(carried) else None
        last = op.regions[0].operations[-1] if op.regions and op.regions[0].operations else None
        ends = passed(last) if last is not None else ()
        return (op.regions[0], ends[place]) if place < len(ends) else None

    def _of_operation(self, op: Operation) -> Value | None:  # noqa: PLR0911 (a case a kind of operation)
        name = op.name
        if name == "arith.constant":
            return constant(op)
        if name == "tt.get_program_id":
            axis = op.rest.split()[0]
            return Value(np.array(self._programs.get(axis, 1), dtype=np.int64), program=axis not in self._alone)
        if name == "tt.get_num_programs":
            return Value(np.array(self._grid[op.rest.split()[0]], dtype=np.int64))
        if name == "tt.make_range":
            ends = {key: int(value) for key, value in re.findall(r"(start|end) = (\d+)", op.rest)}
            return Value(np.arange(ends["start"], ends["end"], dtype=np.int64))
        if name in READS or "atomic" in name:
            return self._data(op)
        if name == "tt.reduce":
            return self._reduced(op)
        operands = [self.operand(op, index) for index in range(len(op.operands))]
        values = [value for value in operands if value is not None]
        if not values or len(values) < len(operands):
            return None
        numbers = apply(op, [value.numbers for value in values])
        if numbers is None or numbers.size > _LARGEST:
            return None
        spread = not _keeps_distances(op, values) and any(value.loaded for value in values) and _differ(numbers)
        result = joined(numbers, values)
        return replace(result, scattered=True) if spread else result

    def _data(self, op: Operation) -> Value | None:
        """What is read from memory: any byte, or any large integer, and no float."""
        pointer = self.operand(op, 0)
        element = POINTER.search(op.rest)
        if pointer is None or element is None or not re.match(r"i\d+|!tt", element[1]):
            return None
        return self._any(pointer, pointer.numbers.shape, _ANY_BYTE if element[1] == "i8" else _ANY_NUMBER)

    def _reduced(self, op: Operation) -> Value | None:
        """What integers that were read are reduced to: any of them, as the place of a row that a search finds."""
        tile, axis = self.operand(op, 0), re.search(r"axis = (\d+)", op.rest)
        if tile is None or axis is None or not tile.loaded:
            return None
        return self._any(tile, np.delete(tile.numbers.shape, int(axis[1])), _ANY_NUMBER)

    def _any(self, source: Value, shape: Iterable[int], ends: tuple[int, int]) -> Value:
        numbers = self._random.integers(*ends, tuple(shape))
        return replace(source, numbers=numbers, loaded=True, scattered=numbers.size > 1)


def _keeps_distances(op: Operation, values: list[Value]) -> bool:
    """Whether the distances between elements follow from those of its operands, whatever was read from memory.

    Those of (begin + tl.arange(0, N)) * stride do, if only `begin` was read; those of tl.arange(0, N) * begin do not.
    """
    factors = {"arith.muli": values, "arith.shli": values[1:]}.get(op.name, [])
    return op.name in SHIFTS or any(not value.loaded and not _differ(value.numbers) for value in factors)


def _differ(numbers: NDArray[np.int64]) -> bool:
    return bool(np.any(numbers != numbers.flat[0]))


def joined(numbers: NDArray[np.int64], values: list[Value]) -> Value:
    """Numbers that depend on what any of these values depends on."""
    return Value(
        np.asarray(numbers, dtype=np.int64),
        any(value.loaded for value in values),
        frozenset().union(*(value.arguments for value in values)),
        frozenset().union(*(value.iterations for value in values)),
        any(value.program for value in values),
        any(value.scattered for value in values),
    )


def constant(op: Operation) -> Value | None:
    """The value of a constant; None unless it is an integer, or has one everywhere."""
    match = re.match(r"\s*(?:\{[^}]*\}\s*)?(?:dense<)?(true|false|-?\d+)>?(?:\s*:|\s*$)", op.rest)
    if match is None:
        return None
    number = {"true": 1, "false": 0}.get(match[1])
    types = tensor_types(op.rest.partition(" : ")[2])
    shape = types[0].shape if types else ()
    if types and types[0].size > _LARGEST:
        return None
    return Value(np.full(shape, int(match[1]) if number is None else number, dtype=np.int64))


def _sample(argument: Argument, place: int, known: int | None) -> Value:
    """A pointer is far from all others; a number is large, and a multiple of 16 only if the compiler knows it."""
    only = frozenset({argument.name.removeprefix("%")})
    if argument.is_pointer:
        base = (place + 1) * DISTANCE
        return Value(np.array(base if argument.divisible else base + element_bytes(argument.type)), arguments=only)
    number = known if known is not None else (1 << 13) + 16 * (2 * place + 1) + (0 if argument.divisible else 5)
    return Value(np.array(number, dtype=np.int64), arguments=only)


def iterations_of(values: Values, loop: Operation, known: Container[str], *, of_program: bool = False) -> int | None:
    """How often `scf.for` runs, if its bounds depend on nothing but these arguments; else None, as of other loops.

    of_program: they may depend on which CTA this is, too.
    """
    bounds = [values.operand(loop, place) for place in BOUNDS] if loop.name == "scf.for" else []
    numbers = [
        int(bound.numbers)
        for bound in bounds
        if bound is not None
        and not (bound.loaded or (bound.program and not of_program) or bound.iterations)
        and all(name in known for name in bound.arguments)
    ]
    return len(range(*numbers)) if len(numbers) == len(BOUNDS) and numbers[-1] > 0 else None
