"""Chains of loads in loops: each address is made of what the load before it gave, so that their latencies add up."""

from collections.abc import Iterable

from kperf.diagnose.kernel import LOADS, LOOPS, inside, own
from kperf.diagnose.loops import carried, read
from kperf.ir.ttgir import Operation
from kperf.ir.values import loop_arguments


def chained_loads(loop: Operation) -> int:
    """Loads of an iteration that wait one after another; 0 where no address is made of what the loop has loaded."""
    waited = dict[str, int]()
    longest = 0
    for op in own(loop):
        before = max((waited.get(name, 0) for name in _addressing(op)), default=0)
        after = before + (op.name in LOADS)
        longest = max(longest, after if op.name in LOADS else 0)
        waited |= dict.fromkeys(op.results, after)
    return longest if longest > 1 or is_chase(loop) else 0


def is_chase(loop: Operation) -> bool:
    """Whether an iteration loads from where the last one's loads said, as in a list or a tree."""
    loaded = _made_of(loop, [name for op in inside(loop) if op.name in LOADS for name in op.results])
    asked = [begin for begin, end in carried(loop) if end in loaded]
    addresses = {name for op in inside(loop) if op.name in LOADS for name in _addressing(op)}
    return bool(asked and addresses & _made_of(loop, asked))


def _addressing(op: Operation) -> set[str]:
    """What an operation waits for before it can be issued: of a load its address, and not what a mask leaves out."""
    return {op.operands[0].partition("#")[0]} if op.name in LOADS else read(op)


def _made_of(loop: Operation, names: Iterable[str]) -> set[str]:
    """These names, and those of what an iteration makes of them, in inner loops too."""
    found = set(names)
    for op in inside(loop):
        if found & read(op):
            found |= set(op.results)
            if op.name in LOOPS:
                found |= set(loop_arguments(op)[1:])
    return found
