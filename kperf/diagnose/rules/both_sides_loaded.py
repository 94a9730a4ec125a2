"""Tiles that are loaded whole, of which `tl.where` drops whole rows."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from kperf.diagnose.analyses.bound import bound_of
from kperf.diagnose.analyses.dropped import KEPT, gain_without, is_even, moved_by
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.masks import conditions_of
from kperf.diagnose.reading.operations import LOOPS, mask_place
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.labels import Labels
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Finding

_IF_TRUE, _IF_FALSE = 1, 2
"""Places of the choices among the operands of `arith.select`."""
_ELEMENTWISE = ("arith.", "math.", "ttg.convert_layout", "tt.fp_to_fp", "tt.bitcast", "tt.extern_elementwise")
"""Beginnings of the names of operations of which each element needs the same element of their operands."""
_MASKED = ("tt.load", "amdg.buffer_load")
"""Loads whose results are tensors."""
_INDICES = ("tt.get_program_id", "tt.make_range")


@dataclass(frozen=True)
class _Choice:
    """A `tl.where` and the loads that nothing else needs, by the operand that they are for; one operand may have none.

    is_of_flags: whether its condition is read from memory, and does not depend on the iteration of a loop otherwise.
    """

    select: Operation
    sides: dict[int, list[Access]]
    is_of_flags: bool

    @property
    def is_of_two(self) -> bool:
        """Whether both sides are loaded for it alone."""
        return len(self.sides) > 1

    @property
    def is_of_two_tensors(self) -> bool:
        """Whether the two sides are of different tensors: of one, as the halves of a row, the cache has both."""
        tensors = [frozenset().union(*(one.value.arguments for one in side)) for side in self.sides.values()]
        return self.is_of_two and tensors[0] != tensors[1]


def check(kernel: Kernel) -> Iterator[Finding]:
    """One finding for all choices of a kernel, if memory bounds it: one flag decides on each tile of a state.

    Of a choice between a tile and a constant the condition has to be read from memory: a comparison of indices often
    removes nothing but what lies behind the last row. An iteration that is compared with a loaded length is a case of
    masked-tiles.
    """
    choices = [choice for choice in _choices(kernel) if choice.is_of_flags or choice.is_of_two_tensors]
    if not choices or bound_of(kernel).unit != "memory":
        return
    likely, most = _gain(kernel, choices)
    if likely < MEDIUM_GAIN:
        return
    largest = max(choices, key=lambda choice: _saved(kernel, choice, KEPT))
    names = {place: " and ".join(_names(kernel, side)) for place, side in sorted(largest.sides.items())}
    whole = " and ".join(names.values())
    others = lines_of((choice.select for choice in choices), largest.select)
    yield kernel.finding(
        RULE.id,
        largest.select,
        "high" if likely >= SEVERE_GAIN and largest.is_of_two else "medium",
        (
            f"{whole} are both loaded whole, and tl.where keeps one of the two"
            if largest.is_of_two
            else f"{whole} is loaded whole, and tl.where replaces a part of it"
        )
        + ": its condition is the same for whole rows"
        + (f" (likewise on {others}, and the estimate is for all of them together)" if others else ""),
        "load only what tl.where keeps: "
        + ", and ".join(
            f"mask={'' if place == _IF_TRUE else '~'}condition in the load of {name}" for place, name in names.items()
        )
        + "; a load that has a mask already keeps its other=, and its mask is joined with &",
        {"loaded_bytes": sum(access.asked_bytes for side in largest.sides.values() for access in side)},
        confidence="medium" if largest.is_of_two else "low",
        estimate=(likely, 1.0, most),
    )


def _choices(kernel: Kernel) -> Iterator[_Choice]:
    """Each `tl.where` by whose condition a load could leave out sectors, and does not."""
    labels = Labels(kernel.module, kernel.known)
    found: dict[int, _Choice] = {}
    for access in kernel.accesses:
        if access.operation.name not in _MASKED or access.contiguous is None:
            continue
        end = _end(labels, kernel, access)
        if end is None or _has_mask(kernel, end[0], access):
            continue
        select, place = end
        deciding = {source.name for source in kernel.values.sources(select, 0, until=READS)}
        is_of_flags = not deciding.isdisjoint(READS) and deciding.isdisjoint(LOOPS)
        choice = found.setdefault(select.line, _Choice(select, defaultdict(list), is_of_flags))
        choice.sides[place].append(access)
    yield from found.values()


def _end(labels: Labels, kernel: Kernel, access: Access) -> tuple[Operation, int] | None:
    """The one `tl.where` by an even condition that needs a load, and as which choice; None if anything else needs it.

    It stands in the load's own iteration and branch, so that its condition decides on each tile that is loaded.
    """
    ends: dict[tuple[int, int], Operation] = {}
    todo, seen = [access.operation], {access.operation.line}
    while todo:
        for user, place in kernel.readers.get(todo.pop().line, ()):
            is_choice = user.name == "arith.select" and place in (_IF_TRUE, _IF_FALSE)
            if is_choice and user.parent is access.operation.parent and _is_even(labels, user, access):
                ends[user.line, place] = user
            elif not user.name.startswith(_ELEMENTWISE):
                return None
            elif user.line not in seen:
                seen.add(user.line)
                todo.append(user)
    if len(ends) != 1:
        return None
    ((_, place), select) = next(iter(ends.items()))
    return select, place


def _is_even(labels: Labels, select: Operation, access: Access) -> bool:
    """Whether the condition of a choice is the same for all elements of each sector that an access loads."""
    condition = labels.operand(select, 0)
    shapes = ((), access.value.numbers.shape)
    return condition is not None and condition.numbers.shape in shapes and is_even(condition.numbers, access)


def _has_mask(kernel: Kernel, select: Operation, access: Access) -> bool:
    """Whether the load's mask decides by what the condition decides by."""
    condition = _decided_by(kernel, kernel.values.sources(select, 0, until=READS))
    masks = [
        _decided_by(kernel, _with_sources(kernel, one))
        for one, _ in conditions_of(kernel, access.operation, mask_place(access.operation))
    ]
    return bool(condition) and condition == frozenset().union(*(mask for mask in masks if mask <= condition))


def _with_sources(kernel: Kernel, op: Operation) -> list[Operation]:
    """An operation and all from which it is computed; of what is read nothing more."""
    places = range(0 if op.name in READS else len(op.operands))
    return [op, *(source for place in places for source in kernel.values.sources(op, place, until=READS))]


def _decided_by(kernel: Kernel, sources: Iterable[Operation]) -> frozenset[object]:
    """Arguments, indices of the CTA and of its elements, and what is read, among these.

    The compiler may compute them once for each layout: then the line of source, or the text, is the same.
    """
    found: set[object] = set()
    for source in sources:
        if source.name in READS:
            found.add(frame_of(source))
            continue
        if source.name in _INDICES:
            found.add(source.rest.partition(" : ")[0])
        found |= {name for name in source.operands if name.removeprefix("%") in kernel.parameters}
    return frozenset(found)


def _names(kernel: Kernel, side: Sequence[Access]) -> list[str]:
    return sorted({name_of(access.value, kernel) for access in side})


def _saved(kernel: Kernel, choice: _Choice, part: float) -> float:
    """Bytes that a CTA need not load if so large a part of the first side is dropped, and the rest of the other."""
    sizes = [sum(moved_by(kernel, access) for access in side) for side in choice.sides.values()]
    return part * sizes[0] + (1 - part) * sum(sizes[1:])


def _gain(kernel: Kernel, choices: Sequence[_Choice]) -> tuple[float, float]:
    """The likely and the most gain where only what is kept is loaded."""
    most = sum(max(_saved(kernel, choice, 0.0), _saved(kernel, choice, 1.0)) for choice in choices)
    likely = sum(_saved(kernel, choice, KEPT) for choice in choices)
    return gain_without(kernel, likely), gain_without(kernel, most)


RULE = Rule("both-sides-loaded", "Two tiles loaded where one is used", check, moves_less=True)
