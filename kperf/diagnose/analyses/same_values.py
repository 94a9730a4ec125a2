"""Which CTAs of a launch compute the same numbers."""

from collections.abc import Sequence

from kperf.diagnose.analyses.different_rows import Numbers, different
from kperf.diagnose.reading.operations import ATOMICS, LOADS, TMA_LOADS
from kperf.ir.loops import BOUNDS
from kperf.ir.origins import Origins
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value

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
            parts = [value] if value is not None else _known_parts(origins, op, place)
            if parts is None:
                return None
            columns |= {id(part.numbers): part.numbers for part in parts}
    _, numbers = different(columns.values(), count)
    return numbers


def _known_parts(origins: Origins, op: Operation, place: int) -> list[Value] | None:
    """What is known of an operand that is not: the numbers which, beside those at `_deciding`, decide it.

    None where an atomic does.
    """
    until = (*TILE_LOADS, *_CONVERTED, "arith.cmpi")
    sources = origins.sources(op, place, until=until)
    if any(one.name in ATOMICS for one in sources):
        return None
    if not any(one.name == "tt.get_program_id" for one in sources):
        return []
    known = {one.line for one in sources if not one.regions and _result(origins, one) is not None}
    unknown = [one for one in origins.sources(op, place, until=until, but=known) if one.name not in until]
    operands = [origins.operand(one, at) for one in unknown for at in range(len(one.operands))]
    return [value for value in operands if value is not None]


def _result(origins: Origins, op: Operation) -> Value | None:
    return origins.of(op.parent, op.results[0]) if op.results else None


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
