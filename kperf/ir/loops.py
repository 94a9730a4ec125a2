"""What loops of TTGIR hand from one iteration to the next: `scf.for` and `scf.while`."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kperf.ir.ttgir import Operation, Region

BOUNDS = (1, 2, 3)
"""Places of a loop's beginning, end and step among the operands of `scf.for`."""
_EQUAL = r"(%[\w$.-]+) = (%[\w$.#-]+)"


@dataclass(frozen=True)
class Carried:
    """A name that a loop gives each iteration anew: where it is from in the first one, and in later ones if it says."""

    loop: Operation
    first: tuple[Region | None, str]
    later: tuple[Region | None, str] | None = None


def carried_by(loop: Operation) -> Iterator[tuple[Region, str, Carried]]:
    """Of a loop the names that its iterations are given, each with its region."""
    body = loop.regions[-1]
    ends = passed(body.operations[-1]) if body.operations else ()
    initial = loop_begins(loop)
    if loop.name == "scf.for":
        for name, begin, end in zip(loop_arguments(loop), initial, ("", *ends), strict=False):
            yield body, name, Carried(loop, (loop.parent, begin), (body, end) if end else None)
        return
    condition = loop.regions[0]
    for name, begin, end in zip(re.findall(_EQUAL, _header(loop)), initial, ends, strict=False):
        yield condition, name[0], Carried(loop, (loop.parent, begin), (body, end))
    given = passed(condition.operations[-1]) if condition.operations else ()
    for name, begin in zip(body.blocks[0].arguments, given, strict=False):
        yield body, name, Carried(loop, (condition, begin))


def passed(end: Operation) -> tuple[str, ...]:
    """What the last operation of a region hands on; empty if it ends in another way."""
    return {"scf.yield": end.operands, "scf.condition": end.operands[1:]}.get(end.name, ())


def _header(loop: Operation) -> str:
    return loop.rest.partition("->")[0]


def loop_arguments(loop: Operation) -> list[str]:
    """The induction variable of `scf.for`, then what it carries."""
    induction = re.match(r"\s*(?:unsigned )?(%[\w$.-]+) = ", _header(loop))
    carried = re.findall(_EQUAL, _header(loop).partition("iter_args(")[2])
    return [induction[1] if induction else "", *(name for name, _ in carried)]


def loop_begins(loop: Operation) -> list[str]:
    """The lower bound of `scf.for`, then the values with which a loop begins what it carries."""
    if loop.name == "scf.while":
        return [value for _, value in re.findall(_EQUAL, _header(loop))]
    lower = re.match(r"\s*(?:unsigned )?%[\w$.-]+ = (%[\w$.#-]+)", _header(loop))
    carried = re.findall(_EQUAL, _header(loop).partition("iter_args(")[2])
    return [lower[1] if lower else "", *(value for _, value in carried)]
