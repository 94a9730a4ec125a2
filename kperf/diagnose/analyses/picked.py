"""Rows and columns that a loop picks from a tile in registers, one in each iteration, by a masked sum of the tile."""

from collections.abc import Iterator
from dataclasses import dataclass

from kperf.diagnose.analyses.comparisons import axis_of, is_along, unshaped
from kperf.diagnose.analyses.loops import carried
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.masks import CASTS, FLOATS, source
from kperf.diagnose.reading.operations import LOADS, inside, loops_around
from kperf.ir.layouts import TensorType, tensor_types
from kperf.ir.ttgir import Operation

_COMBINED = ("arith.addf", "arith.addi", "arith.maxnumf", "arith.maximumf", "arith.maxsi", "arith.maxui")
_PRODUCTS = ("arith.mulf", "arith.muli")


@dataclass(frozen=True)
class Picked:
    """reduction: that leaves one row. made: what selects and reduces. tile: of which. axis: along which it is reduced.

    loop: in whose iterations. is_loaded: whether the tile is as memory holds it, before the loop.
    """

    reduction: Operation
    made: tuple[Operation, ...]
    tile: TensorType
    axis: int
    loop: Operation
    is_loaded: bool


def picked_rows(written: Kernel) -> Iterator[Picked]:
    """Of tiles whose rows are, until the loop picks them, as before the loop."""
    for op in written.named("tt.reduce"):
        types, loops = tensor_types(written.module.lines[op.last_line]), loops_around(op)
        if len(op.operands) != 1 or not types or len(types[0].shape) < 2 or not loops:
            continue
        axis, choice = axis_of(op), unshaped(written, op, 0)
        if choice is None or not {one.name for one in inside(op)} & {*_COMBINED}:
            continue
        for mask, value in _places(choice):
            compared = _number(written, choice, mask, axis, loops[0])
            if compared is None or not _is_unchanged(written, choice, value, compared, loops[0]):
                continue
            made = source(written.values, choice, value)
            is_loaded = made is not None and made.name in LOADS
            yield Picked(op, (op, choice), types[0], axis, loops[0], is_loaded)


def _places(choice: Operation) -> list[tuple[int, int]]:
    """Of the mask and the tile, in `where(mask, tile, 0)` or `mask * tile`."""
    return [(0, 1)] if choice.name == "arith.select" else [(0, 1), (1, 0)] if choice.name in _PRODUCTS else []


def _number(written: Kernel, op: Operation, place: int, axis: int, loop: Operation) -> Operation | None:
    """The comparison of the numbers of rows with one that is another in each iteration of a loop."""
    made = unshaped(written, op, place)
    while made is not None and made.name in FLOATS:
        made = unshaped(written, made, 0)
    if made is None or made.name != "arith.cmpi" or not made.rest.split(",")[0].strip().endswith("eq"):
        return None
    if not _is_shaped_along(written, op, place, axis):
        return None
    for at in (0, 1):
        numbers, one = written.values.operand(made, at), written.values.operand(made, 1 - at)
        if numbers is None or one is None or numbers.loaded or numbers.program or numbers.iterations:
            continue
        is_one = loop.line in one.iterations and one.numbers.min() == one.numbers.max()
        if is_one and len(set(numbers.numbers.ravel().tolist())) > 1:
            return made
    return None


def _is_shaped_along(written: Kernel, op: Operation, place: int, axis: int) -> bool:
    """Whether a mask differs along one axis alone; it may have become a float after it was broadcast."""
    made = written.values.maker(op, place)
    return is_along(written, op, place, axis) or (
        made is not None and made.name in (*FLOATS, *CASTS) and _is_shaped_along(written, made, 0, axis)
    )


def _is_unchanged(written: Kernel, op: Operation, place: int, compared: Operation, loop: Operation) -> bool:
    """Whether a tile is from before the loop, or is one that the loop carries and changes in the picked row alone."""
    made, name = _origin(written, op, place)
    if made is not None:
        return loop not in loops_around(made)
    end = next((end for begin, end in carried(loop) if begin == name), None)
    if end is None:
        return False
    change = written.values.made(loop.regions[-1], end)
    if change is None or change.name != "arith.select" or _origin(written, change, 2)[1] != name:
        return False
    mask = unshaped(written, change, 0)
    return mask is not None and (mask is compared or frame_of(mask) == frame_of(compared))


def _origin(written: Kernel, op: Operation, place: int) -> tuple[Operation | None, str]:
    """What makes an operand before it is converted, and its name there."""
    made = written.values.maker(op, place)
    while made is not None and made.name in CASTS:
        op, place = made, 0
        made = written.values.maker(op, place)
    return made, op.operands[place].partition("#")[0]
