"""Operands of MMAs that hold at most one number other than 0 in each row: products that copy rows."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kperf.diagnose.analyses.comparisons import is_along, is_broadcast, unshaped
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import CASTS, FLOATS, chooses_one, conditions_of, source
from kperf.diagnose.reading.operations import LOADS, MMAS, TMA_LOADS, inside, loops_around, mma_element, mma_shape
from kperf.ir.layouts import TensorType, element_bytes, tensor_types
from kperf.ir.outcomes import constant_number
from kperf.ir.ttgir import Operation

_PASSED = (
    *(*CASTS, *FLOATS, "tt.fp_to_fp", "tt.reshape", "tt.split"),
    *("ttg.local_alloc", "ttg.local_load", "ttg.memdesc_subslice"),
)
"""What leaves the numbers of an operand; a wgmma of registers multiplies a part of the depth, split off."""
_TRANSPOSES = ("tt.trans", "ttg.memdesc_trans")
_SIDES = 2
_FROM_MEMORY = (*LOADS, *TMA_LOADS, "ttg.local_load")
_BUFFER = "ttg.memdesc_index"
"""A buffer that an iteration fills ahead."""
_LOWER, _UPPER = ("ge", "gt"), ("le", "lt")


@dataclass(frozen=True)
class OneHot:
    """MMAs of an operand with at most one number other than 0 for each of `elements`, by comparison with all `entries`.

    compared: the comparisons. made: all that computes the operand. tables: lines of the loads of the entries, and of
    what is compared with them. columns, bytes: numbers of an entry, and the size of each. around: the loop over the
    entries; None where one tile has them all. is_of_intervals: whether entries are intervals that nothing keeps apart.
    """

    mmas: tuple[Operation, ...]
    compared: tuple[Operation, ...]
    made: tuple[Operation, ...]
    tables: frozenset[int]
    elements: int
    entries: int
    columns: int
    bytes: int
    around: Operation | None
    is_of_intervals: bool


def one_hot_products(kernel: Kernel) -> Iterator[OneHot]:
    """The MMAs that copy rows, those of one comparison together."""
    found: dict[int, list[OneHot]] = defaultdict(list)
    for mma in kernel.named(*MMAS):
        for one in filter(None, (_of_operand(kernel, mma, place) for place in (0, 1))):
            found[one.compared[0].line].append(one)
    for alike in found.values():
        yield replace(alike[0], mmas=tuple(mma for one in alike for mma in one.mmas))


def _of_operand(kernel: Kernel, mma: Operation, place: int) -> OneHot | None:
    """Of an MMA that multiplies such an operand by what is loaded."""
    shape, made = mma_shape(mma), _made(kernel, mma, place)
    table = source(kernel.values, mma, 1 - place, (*_PASSED, *_TRANSPOSES))
    if shape is None or made is None or table is None or table.name not in (*LOADS, *TMA_LOADS, _BUFFER):
        return None  # only what is loaded as it is could be loaded by rows
    op, at, is_transposed = made
    depth = place if is_transposed else 1 - place
    compared = _chosen(kernel, op, at, depth)
    tiles = tensor_types(compared[0].rest) if compared else ()
    if not tiles or len(tiles[0].shape) != _SIDES:
        return None
    loop = next(iter(loops_around(compared[0])), None)
    around = loop if loop is not None and any(_moves(kernel, one, loop, depth) for one in compared) else None
    count = kernel.iterations(around) if around is not None else 1
    if count is None:
        return None
    return OneHot(
        (mma,),
        compared,
        tuple(one for one in kernel.values.sources(mma, place, LOADS) if _is_tile(one, tiles[0])),
        frozenset(one.line for one in inside(around) if one.name in LOADS)
        if around is not None
        else frozenset({table.line}),
        elements=tiles[0].shape[1 - depth],
        entries=tiles[0].shape[depth] * count,
        columns=shape[1 - place],
        bytes=element_bytes(mma_element(mma)),
        around=around,
        is_of_intervals=len(compared) > 1,
    )


def _is_tile(op: Operation, tile: TensorType) -> bool:
    """Whether an operation makes a tile of this shape."""
    types = tensor_types(op.rest)
    return bool(types) and types[-1].shape == tile.shape


def _made(kernel: Kernel, user: Operation, place: int) -> tuple[Operation, int, bool] | None:
    """Where the numbers of an operand are made, as an operand of `user` before casts; and whether it is transposed."""
    is_transposed = False
    made = kernel.values.maker(user, place)
    while made is not None and (made.name in (*_PASSED, *_TRANSPOSES)):
        if made.name in _TRANSPOSES and "array<i32: 1, 0>" in made.rest:
            is_transposed = not is_transposed
        user, place, made = made, 0, kernel.values.maker(made, 0)
    return None if made is None else (user, place, is_transposed)


def _chosen(kernel: Kernel, user: Operation, place: int, depth: int) -> tuple[Operation, ...]:
    """The comparisons by which an operand holds at most one number other than 0 along its depth; empty without any."""
    made = kernel.values.maker(user, place)
    if made is not None and made.name == "arith.mulf":
        return next(filter(None, (_chosen(kernel, made, side, depth) for side in (0, 1))), ())
    if made is not None and made.name in (*CASTS, *FLOATS):
        return _chosen(kernel, made, 0, depth)
    if made is not None and made.name == "arith.select":
        if not (chooses_one(kernel.values, made) or _is_zero(kernel, made)):
            return ()
        user, place = made, 0
    conditions = [
        one for one, negated in conditions_of(kernel, user, place) if one.name == "arith.cmpi" and not negated
    ]
    for one in conditions:
        if _order(one) == "eq" and any(_is_index(kernel, one, side, depth) for side in (0, 1)):
            return (one,)
    return _interval(kernel, conditions, depth)


def _is_zero(kernel: Kernel, select: Operation) -> bool:
    otherwise = source(kernel.values, select, 2, (*CASTS, "tt.splat"))
    return otherwise is not None and otherwise.name == "arith.constant" and constant_number(otherwise) == 0


def _order(compared: Operation) -> str:
    """`eq`, or `ge`, `gt`, `le` or `lt` of whatever integers."""
    return compared.rest.split(",")[0].strip()[-2:]


def _is_index(kernel: Kernel, compared: Operation, place: int, depth: int) -> bool:
    """Whether numbers in order, each once, are compared with one number for each element."""
    number = kernel.values.operand(compared, place)
    is_number = number is not None and not (number.loaded or number.program)
    return is_number and is_along(kernel, compared, place, depth) and is_broadcast(kernel, compared, 1 - place, depth)


def _interval(kernel: Kernel, conditions: list[Operation], depth: int) -> tuple[Operation, ...]:
    """A comparison with a loaded beginning and one with a loaded end of each entry, of the same element; else empty."""
    bounds: dict[str, dict[int, Operation]] = {"lower": {}, "upper": {}}
    for one in conditions:
        for entry in (0, 1):
            limit, element = _loaded(kernel, one, entry), unshaped(kernel, one, 1 - entry)
            is_entry = is_along(kernel, one, entry, depth) and is_broadcast(kernel, one, 1 - entry, depth)
            if limit is None or element is None or not is_entry:
                continue
            orders = (_LOWER, _UPPER) if entry == 1 else (_UPPER, _LOWER)
            if _order(one) in orders[0]:
                bounds["lower"][element.line] = one
            elif _order(one) in orders[1]:
                bounds["upper"][element.line] = one
    both = bounds["lower"].keys() & bounds["upper"].keys()
    return next(((bounds["lower"][line], bounds["upper"][line]) for line in both), ())


def _loaded(kernel: Kernel, op: Operation, place: int) -> Operation | None:
    """The load of an operand's numbers, or of those that a loop has loaded ahead; None where they are computed."""
    made = unshaped(kernel, op, place)
    return made if made is not None and made.name in _FROM_MEMORY else None


def _moves(kernel: Kernel, compared: Operation, loop: Operation, depth: int) -> bool:
    """Whether each iteration of a loop compares with other entries."""
    for place in (0, 1):
        if is_along(kernel, compared, place, depth):
            number, load = kernel.values.operand(compared, place), _loaded(kernel, compared, place)
            if number is not None and not number.loaded:
                return loop.line in number.iterations
            return load is not None and loop in loops_around(load)
    return False
