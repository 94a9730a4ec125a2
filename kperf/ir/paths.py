"""The two paths of machine code that parts once: what a kernel with sampled CTAs executes in either kind of CTA."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

_LABEL = re.compile(r"^\s*([.\w$]+):\s*$")
_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+((@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)[^;]*;)")
_TARGET = re.compile(r"`\(([.\w$]+)\)")
_TABLE = re.compile(r'BRANCH_TARGETS ([^"]*)"')
_CLOCK = re.compile(r"SR_CLOCKLO|SR_GLOBALTIMERLO")
_JUMPS = ("BRA", "CALL", "JMP")
_TABLES = ("BRX", "JMX")
"""Jumps whose targets are in a table."""
_ENDS = ("EXIT", "RET", *_TABLES)


@dataclass
class _Block:
    lines: list[str] = field(default_factory=list)
    following: list[int | str] = field(default_factory=list)
    """Blocks by number or label."""


def parted(listing: str) -> tuple[str, str] | None:
    """The instructions of the path without events and of the path with, where the first branch to one of them is.

    `listing`: what `nvdisasm -c` prints of a kernel. An instruction a line, in the order of addresses, with what both
    paths execute. None if no branch parts code that reads clocks from code that reads none.
    """
    blocks, labels = _blocks(listing)
    following = [
        [labels.get(name, -1) if isinstance(name, str) else name for name in block.following] for block in blocks
    ]
    if any(-1 in numbers for numbers in following):
        return None
    timed = {number for number, block in enumerate(blocks) if any(map(_CLOCK.search, block.lines))}
    reached = [_reached(following, [number]) for number in range(len(blocks))]
    for number, after in enumerate(following):
        events = [bool(reached[each] & timed) for each in after]
        if len(after) == 2 and sorted(events) == [False, True]:
            before = _reached(following, [0], until=number)
            original, instrumented = (
                before | reached[after[events.index(with_events)]] for with_events in (False, True)
            )
            return _text(blocks, original), _text(blocks, instrumented)
    return None


def _blocks(listing: str) -> tuple[list[_Block], dict[str, int]]:
    blocks, labels = [_Block()], {}
    for line in listing.splitlines():
        if label := _LABEL.match(line):
            if blocks[-1].lines:
                blocks[-1].following.append(len(blocks))
                blocks.append(_Block())
            labels[label[1]] = len(blocks) - 1
        elif match := _INSTRUCTION.search(line):
            text, predicate, name = match[1], match[2], match[3]
            blocks[-1].lines.append(text)
            if name not in _JUMPS and name not in _ENDS:
                continue
            if name in _TABLES:
                table = _TABLE.search(line)
                blocks[-1].following += table[1].split(",") if table else ["a table that is not listed"]
            elif name in _JUMPS:
                blocks[-1].following += _TARGET.findall(line)
            if predicate or name == "CALL":
                blocks[-1].following.append(len(blocks))
            blocks.append(_Block())
    return blocks, labels


def _reached(following: Sequence[Sequence[int]], start: list[int], until: int | None = None) -> set[int]:
    """Blocks that are reached from some, themselves included, without going on from `until`."""
    visited: set[int] = set()
    waiting = list(start)
    while waiting:
        number = waiting.pop()
        if number not in visited:
            visited.add(number)
            waiting += [] if number == until else following[number]
    return visited


def _text(blocks: list[_Block], chosen: set[int]) -> str:
    return "".join(f"\t{line}\n" for number in sorted(chosen) for line in blocks[number].lines)
