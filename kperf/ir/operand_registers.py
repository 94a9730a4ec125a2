"""Registers of a wgmma's operand that a loop writes while the wgmma may still read them, in machine code.

The first operand of a wgmma may be in registers, which it reads after its warps have gone on. Whoever writes these
registers before a wait for it leaves the results undefined (PTX ISA, wgmma.wait_group). Triton 3.6 to 3.8 wait for the
first MMA of the iteration before alone (triton-lang/triton#9433), and compute the next operands meanwhile.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kperf.ir.machine import Instruction, MachineCode

_OPERAND = re.compile(r"R\d+, R(\d+), ")
"""Of HGMMA and its kin: the accumulator, then the first operand, which is gdesc[...] where it is in shared memory."""
_REGISTERS = 4
"""Of a thread: 64 rows of 32 bytes for 128 threads, whatever the type."""
_WRITTEN = re.compile(r"(?:!?P\w+, )?R(\d+)\b")
"""What an instruction writes comes first, behind a predicate that it writes, too. Addresses stand in brackets."""
_ONLY_READ = ("BAR", "CALL", "RET", "WARPSYNC", "NANOSLEEP")
_WIDE = (((".128", ".M88.4"), 4), ((".64", ".WIDE", ".M88.2"), 2))
_ENDS_GROUP = "gsb0"
_WAIT = "WARPGROUP.DEPBAR"
_ITERATIONS = 3
"""That are run: a wait leaves at most the MMAs of an iteration in flight."""


@dataclass(frozen=True)
class Overwritten:
    """`write` changes a register that `mma` may still read. later: iterations from that of the MMA to that of it."""

    mma: Instruction
    write: Instruction
    later: int


@dataclass(frozen=True)
class _InFlight:
    mma: Instruction
    registers: frozenset[int]
    iteration: int


def overwritten(code: MachineCode) -> Iterator[Overwritten]:
    """Each MMA of an innermost loop once, in the order in which their registers are written."""
    loops = [loop for loop in code.loops if any(_is_mma(one) for one in _body(code, loop))]
    for loop in loops:
        if not any(other != loop and loop[0] <= other[0] and other[1] <= loop[1] for other in loops):
            yield from _in_loop(_body(code, loop))


def _in_loop(body: list[Instruction]) -> Iterator[Overwritten]:
    groups: list[list[_InFlight]] = []
    group: list[_InFlight] = []
    seen = set()
    for iteration in range(_ITERATIONS):
        for instruction in body:
            if _is_mma(instruction):
                group.append(_InFlight(instruction, _operand(instruction), iteration))
                if _ENDS_GROUP in instruction.operands:
                    groups.append(group)
                    group = []
            elif instruction.opcode.startswith(_WAIT):
                left = int(instruction.operands.rpartition(" ")[2], 16)
                groups = groups[max(len(groups) - left, 0) :]
            else:
                written = _written(instruction)
                for one in (one for each in (*groups, group) for one in each):
                    if written & one.registers and one.mma.address not in seen:
                        seen.add(one.mma.address)
                        yield Overwritten(one.mma, instruction, iteration - one.iteration)


def _body(code: MachineCode, loop: tuple[int, int]) -> list[Instruction]:
    return [one for one in code.instructions if loop[0] <= one.address <= loop[1]]


def _is_mma(instruction: Instruction) -> bool:
    return "GMMA" in instruction.opcode


def _operand(mma: Instruction) -> frozenset[int]:
    """The registers of its first operand; none of one in shared memory."""
    first = _OPERAND.match(mma.operands)
    return frozenset(range(int(first[1]), int(first[1]) + _REGISTERS)) if first else frozenset()


def _written(instruction: Instruction) -> frozenset[int]:
    first = _WRITTEN.match(instruction.operands)
    if first is None or instruction.opcode.startswith(_ONLY_READ):
        return frozenset()
    count = next((count for marks, count in _WIDE if any(mark in instruction.opcode for mark in marks)), 1)
    return frozenset(range(int(first[1]), int(first[1]) + count))
