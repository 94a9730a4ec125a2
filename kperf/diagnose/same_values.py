"""Which CTAs of a launch compute the same numbers."""

from collections.abc import Sequence

from kperf.diagnose.kernel import ATOMICS, LOADS, TMA_LOADS
from kperf.diagnose.waves import Numbers, different
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation
from kperf.ir.values import BOUNDS

TILE_LOADS = (*LOADS, *TMA_LOADS)
_CONVERTED = ("arith.sitofp", "arith.uitofp")


def numbers_of_ctas(origins: Origins, operations: Sequence[Operation], count: int) -> Numbers | None:
    """A number for each of `count` CTAs, the same for those that compute the same; None if it is not known.

    Values differ by where loads begin, by what positions are compared with, by positions as data, and by iterations.
    """
    columns: dict[int, Numbers] = {}  # values that the same operation makes are the same array
    for op in operations:
        for place in _deciding(op):
            value = origins.operand(op, place)
            if value is None:
                if _from_programs(origins, op, place):
                    return None
                continue
            columns[id(value.numbers)] = value.numbers
    _, numbers = different(columns.values(), count)
    return numbers


def _from_programs(origins: Origins, op: Operation, place: int) -> bool:
    """Whether an operand depends on the CTA otherwise than by the numbers at `_deciding`."""
    sources = origins.sources(op, place, until=(*TILE_LOADS, *_CONVERTED, "arith.cmpi"))
    return any(one.name in ("tt.get_program_id", *ATOMICS) for one in sources)


def _deciding(op: Operation) -> Sequence[int]:
    """Places of the operands by which an operation's values differ from CTA to CTA."""
    if op.name in LOADS or op.name in (*_CONVERTED, "tt.make_tensor_descriptor"):
        return (0,)
    if op.name in TMA_LOADS:
        return range(1, len(op.operands))
    if op.name == "arith.cmpi":
        return (0, 1)
    if op.name in ("tt.reduce", "scf.yield"):
        return range(len(op.operands))
    return BOUNDS if op.name == "scf.for" else ()
