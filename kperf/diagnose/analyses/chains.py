"""Chains of loads: each address is made of what the load before it gave, so that their latencies add up."""

from collections.abc import Iterable, Iterator

from kperf.diagnose.analyses.loops import carried
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, inside, loops_around, own
from kperf.ir.loops import loop_arguments, loop_begins
from kperf.ir.ttgir import Operation


def waits(kernel: Kernel) -> int:
    """Loads beside a kernel's loops that wait one after another: each address is made of what the last one gave."""
    longest = dict[int, int]()
    for op in kernel.named(*LOADS):
        if loops_around(op):
            continue
        asked = (longest[source.line] for source in kernel.values.sources(op, 0) if source.line in longest)
        longest[op.line] = max(asked, default=0) + 1
    return max(longest.values(), default=0)


def chained_loads(loop: Operation) -> int:
    """Loads of an iteration that wait one after another; 0 where no address is made of what the loop has loaded."""
    waited = dict[str, int]()
    longest = 0
    for op in own(loop):
        is_load = op.name in LOADS
        given = dict[str, int]()
        for source, name in _passed(op, loop):
            before = waited.get(source, waited.get(source.partition("#")[0], 0))
            given[name] = max(given.get(name, 0), before + is_load)
        if op.name == "scf.yield":  # another branch may give more; other names may stand for something else elsewhere
            given = {name: max(count, waited.get(name, 0)) for name, count in given.items()}
        waited |= given
        longest = max(longest, *given.values()) if is_load else longest
    return longest if longest > 1 or is_chase(loop) else 0


def is_chase(loop: Operation) -> bool:
    """Whether an iteration loads from where the last one's loads said, as in a list or a tree."""
    loaded = _made_of(loop, [name for op in inside(loop) if op.name in LOADS for name in op.results])
    ends = loop.regions[-1].operations[-1].operands
    asked = [begin for (begin, _), end in zip(carried(loop), ends, strict=False) if _known(end, loaded)]
    reached = _made_of(loop, asked)
    return any(_known(op.operands[0], reached) for op in inside(loop) if op.name in LOADS)


def _made_of(loop: Operation, names: Iterable[str]) -> set[str]:
    """These names, and those of what an iteration makes of them, in inner loops too."""
    found, before = set(names), -1
    while before < len(found):
        before = len(found)
        found |= {name for op in inside(loop) for source, name in _passed(op, loop) if _known(source, found)}
    return found


def _known(name: str, names: set[str]) -> bool:
    """Whether a name is one of these, or one result of an operation whose results are all of these."""
    return name in names or name.partition("#")[0] in names


def _passed(op: Operation, loop: Operation) -> Iterator[tuple[str, str]]:
    """What an operation in a loop waits for before it is done, and what it gives.

    A load waits for its address; what it gives in place of masked elements is no part of it. Values pass into inner
    loops, and out of these and of branches, each to its own name.
    """
    owner = op.parent.owner if op.parent is not None else None
    if op.name == "scf.yield" and owner is not None and owner is not loop:
        yield from zip(op.operands, _results(owner, len(op.operands)), strict=False)
        if owner.name in LOOPS:
            yield from zip(op.operands, loop_arguments(owner)[1:], strict=False)
    elif op.name == "scf.for":
        yield from zip(loop_begins(op), loop_arguments(op), strict=False)
    elif op.name in (*LOADS, "scf.if"):
        yield from ((op.operands[0], name) for name in op.results)
    elif op.name != "scf.yield":
        yield from ((source, name) for source in op.operands for name in op.results)


def _results(op: Operation, count: int) -> list[str]:
    """The names by which the results of an operation are read."""
    return [f"{name}#{number}" for name in op.results for number in range(count)] if count > 1 else list(op.results)
