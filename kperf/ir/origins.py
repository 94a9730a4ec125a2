"""The first element of each value of a TTGIR module, in many CTAs of a launch at once."""

import re
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kperf.ir.arithmetic import apply
from kperf.ir.loops import loop_arguments, passed
from kperf.ir.ttgir import Module, Operation, Region
from kperf.ir.values import DISTANCE, READS, Value, Values, constant, joined

_SAME_FIRST = ("tt.splat", "tt.broadcast", "tt.expand_dims", "tt.reshape", "tt.trans")
"""What moves elements and leaves the first one first."""


class Origins(Values):
    """As `Values`, of the first element alone: where a CTA's tile begins. `numbers` has a number a CTA, or one for all.

    Nothing is sampled: what depends on an argument that the launch does not say, on memory, or on what a loop computes
    is not known. Loops stand at their first iteration, or at the one that `begins` says.
    """

    def __init__(
        self,
        module: Module,
        known: Mapping[str, int],
        programs: Mapping[str, NDArray[np.int64]],
        grid: tuple[int, int, int],
        begins: Mapping[int, NDArray[np.int64]] | None = None,
        apart: int | None = None,
    ) -> None:
        """`known`: integers of the launch, by name without `%`.

        programs: program ids of the CTAs along x, y and z. begins: by the line of a loop, its induction variable in
        each CTA. apart: of integers in memory, how much larger than one each next one is taken to be, as of offsets of
        rows: they are labels, of which equal ones stand for equal numbers. None: they are not known.
        """
        super().__init__(module, dict(known))
        self._sampled = {
            name: value
            for name, value in self._sampled.items()
            if self._arguments[name].is_pointer or name.removeprefix("%") in known
        }
        self._ids = programs
        self._grid = dict(zip("xyz", grid, strict=True))
        self._begins = begins or {}
        self._apart = apart

    def argument(self, operation: Operation, index: int) -> Value | None:
        """A number for the argument of the function that an operand is, other than its tensor's addresses; else None.

        Of a descriptor that the host made nothing else is known.
        """
        key = self._resolve(operation.parent, operation.operands[index])
        places = {name: place for place, name in enumerate(self._arguments)}
        if key in self._made or key in self._carried or key[1] not in places:
            return None
        return Value(np.array(places[key[1]], dtype=np.int64), arguments=frozenset({key[1].removeprefix("%")}))

    def runs(self, operation: Operation) -> NDArray[np.bool_] | None:
        """Which CTAs take the branches around an operation; None if that is not known, or differs by the iteration."""
        runs, region = np.array(True), operation.parent
        while region is not None and region.owner is not None:
            branch = region.owner
            if branch.name == "scf.if":
                condition = self.operand(branch, 0)
                if condition is None or condition.iterations:
                    return None
                runs = runs & ((condition.numbers != 0) == (region is branch.regions[0]))
            region = branch.parent
        return runs

    def _resolve(self, region: Region | None, name: str) -> tuple[int, str]:
        """Of what a partition of a warp-specialised kernel is given what stands for it outside."""
        around = region
        while around is not None and not around.label.startswith("partition"):
            around = around.owner.parent if around.owner is not None else None
        key = super()._resolve(region, name)
        if around is None or around.owner is None or key[0] >= around.line:
            return key
        given = re.findall(r"(%[\w$.-]+): ", around.header)
        if key[1] not in given:
            return key
        return self._resolve(around.owner.parent, around.owner.operands[given.index(key[1])])

    def _compute(self, key: tuple[int, str], place: int) -> Value | None:
        carried = self._carried.get(key)
        if carried is None or carried.loop.line not in self._begins or key[1] != loop_arguments(carried.loop)[0]:
            return super()._compute(key, place)
        return Value(self._begins[carried.loop.line], program=True)

    def _of_region(self, op: Operation, place: int) -> Value | None:
        """Of a branch that which each CTA takes."""
        ends = [(region, passed(region.operations[-1])) for region in op.regions if region.operations]
        condition = self.operand(op, 0)
        if op.name != "scf.if" or len(ends) != 2 or condition is None or any(len(end) <= place for _, end in ends):
            return None
        taken, other = (self.of(region, end[place]) for region, end in ends)
        if taken is None or other is None:
            return None
        return joined(np.where(condition.numbers != 0, taken.numbers, other.numbers), [condition, taken, other])

    def _end(self, op: Operation, place: int) -> tuple[Region | None, str] | None:
        return super()._end(op, place) if op.name == "scf.if" else None

    def _of_operation(self, op: Operation) -> Value | None:  # noqa: PLR0911 (a case a kind of operation)
        axis = op.rest.split()[0] if op.rest.split() else ""
        if op.name == "arith.constant":
            value = constant(op)
            return None if value is None else Value(value.numbers.reshape(-1)[0])
        if op.name == "tt.get_program_id":
            return Value(self._ids[axis], program=True)
        if op.name == "tt.get_num_programs":
            return Value(np.array(self._grid[axis], dtype=np.int64))
        if op.name in READS:
            return self._label(op)
        if "atomic" in op.name:
            return None
        operands = [self.operand(op, index) for index in range(len(op.operands))]
        values = [value for value in operands if value is not None]
        if op.name == "tt.make_range":
            return Value(super()._of_operation(op).numbers[0])  # type: ignore[union-attr]
        if not values or len(values) < len(operands):
            return None
        numbers = values[0].numbers if op.name in _SAME_FIRST else apply(op, [value.numbers for value in values])
        return None if numbers is None else joined(numbers, values)

    def _label(self, op: Operation) -> Value | None:
        """By the place in its tensor of an integer that is read; negative before the tensor."""
        address, kind = self.operand(op, 0), re.search(r"!tt\.ptr<i(\d+)>", op.rest)
        if self._apart is None or address is None or kind is None:
            return None
        place = ((address.numbers + DISTANCE // 2) % DISTANCE - DISTANCE // 2) // (int(kind[1]) // 8 or 1)
        return replace(address, numbers=place * self._apart, loaded=True)
