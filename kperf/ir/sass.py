"""The order in which the assembler put what matters: MMAs, loads, stores, waits, signals, exponentials.

A record is a barrier to the assembler's scheduling, so an instrumented kernel can show an order that the original one
does not have. Both are compiled, and the order of the instructions below is compared, in the order of the program's
addresses. What a record itself is made of, a clock's reading and its store, is left out.
"""

import re
from dataclasses import dataclass
from difflib import SequenceMatcher

from kperf.arch import SM_90A, Arch

_INSTRUCTION = re.compile(r"\t(?:@!?U?P\w+ )?([A-Z][\w.]*)(.*?);")
_CLOCK = re.compile(r"CS2R\.32 R(\d+), SR_CLOCKLO")
_STORED = re.compile(r"(?:STS\.64|STG\.E\.64)\S* .*, R(\d+) ?;")
_ASYNCHRONOUS = re.compile(r"\t(?:@!?U?P\w+ )?(?:[HQIB]GMMA|UTC[A-Z]*MMA)", re.MULTILINE)
_WGMMA = re.compile(r"([HQIB])GMMA\.(\d+x\d+x\d+)")

_TYPES = {"H": "wgmma", "Q": "fp8 wgmma", "I": "int8 wgmma", "B": "binary wgmma"}
_BOOKKEEPING = {"store", "shared load", "barrier"}
"""What a traced kernel does besides, where a block begins and ends: its header, the records' way to device memory."""


@dataclass(frozen=True)
class Difference:
    """A stretch that the two kernels order differently."""

    after: str
    original: str
    instrumented: str


def order(sass: str, arch: Arch = SM_90A) -> list[str]:
    """The instructions that make up the schedule; runs of one kind are one entry, `exp2 x66`."""
    asynchronous = _ASYNCHRONOUS.search(sass) is not None
    # Under asynchronous MMAs the assembler mixes some freely with others, which says nothing.
    shown = [op for op in arch.opcodes if op.ordered == "always" or (op.ordered != "never" and not asynchronous)]
    names = {op.prefix: op.name for op in shown}
    runs: list[tuple[str, int]] = []
    clock: int | None = None
    for line in sass.splitlines():
        match = _INSTRUCTION.search(line)
        if match is None:
            continue
        if read := _CLOCK.search(line):
            clock = int(read.group(1))
            continue
        stored = _STORED.search(line)
        if stored and clock is not None and int(stored.group(1)) == clock - 1:  # a record: its tag and the clock
            clock = None
            continue
        event = _event(match.group(1), match.group(2), names)
        if event is None:
            continue
        if runs and runs[-1][0] == event:
            runs[-1] = (event, runs[-1][1] + 1)
        else:
            runs.append((event, 1))
    return [f"{event} x{count}" if count > 1 else event for event, count in runs]


def spills(sass: str) -> int:
    """How many instructions store registers to a thread's own memory, or load them from there."""
    opcodes = (match[1] for match in map(_INSTRUCTION.search, sass.splitlines()) if match)
    return sum(opcode.startswith(("STL", "LDL")) for opcode in opcodes)


def _event(opcode: str, operands: str, names: dict[str, str]) -> str | None:
    if mma := _WGMMA.match(opcode + operands):
        # Two MMAs of one shape often differ in this: which way the second operand lies in shared memory.
        return f"{_TYPES[mma[1]]} {mma[2]}{' B transposed' if '.tnspB' in operands else ''}"
    if opcode.startswith("WARPGROUP.DEPBAR"):
        return f"wait for wgmma, {int(operands.rpartition('0x')[2], 16)} left"
    return next((name for prefix, name in names.items() if opcode.startswith(prefix)), None)


def compare(original: list[str], instrumented: list[str]) -> list[Difference]:
    """Where the two orders differ, but for what a traced kernel adds around its records; empty when they do not."""
    matcher = SequenceMatcher(None, original, instrumented, autojunk=False)
    return [
        Difference(original[i1 - 1] if i1 else "the start", ", ".join(original[i1:i2]), ", ".join(instrumented[j1:j2]))
        for tag, i1, i2, j1, j2 in matcher.get_opcodes()
        if tag != "equal"
        and not (tag == "insert" and {name.split(" x")[0] for name in instrumented[j1:j2]} <= _BOOKKEEPING)
    ]
