"""The machine code of a kernel, an instruction an object, with the lines of source from which it was made.

It reads what `nvdisasm -c -gi` prints. ptxas keeps the innermost line of an inlined call, and the calls around it where
the PTX names them (`inlined_at`).
"""

import re
from dataclasses import dataclass, replace

from kperf.ir.locations import Frame, Moved, of_user, unescaped

_SECTION = re.compile(r"^\.text\.(.+):$")
_LABEL = re.compile(r"^\s*(\.L\w*):")
_LINE = re.compile(r'//## File "([^"]*)", line (\d+)')
_INSTRUCTION = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z][\w.]*)\s*([^;]*?)\s*;")
_TARGET = re.compile(r"`\((\.L\w*)\)")
_BRANCHES = ("BRA", "BRX", "JMP")


@dataclass(frozen=True)
class Instruction:
    """One instruction. frames: its line of source and the calls around it, the innermost first; empty if unknown."""

    address: int
    predicate: str
    opcode: str
    operands: str
    frames: tuple[Frame, ...]

    @property
    def frame(self) -> Frame | None:
        """Its line of source: `of_user`."""
        return of_user(self.frames)


@dataclass(frozen=True)
class MachineCode:
    """The instructions of one function, and its loops as (first address, last address), outermost first."""

    instructions: tuple[Instruction, ...]
    loops: tuple[tuple[int, int], ...]

    def moved(self, moved: Moved) -> "MachineCode":
        """The same code with its lines of source where they stand now."""
        if not moved.lines:
            return self
        instructions = tuple(
            replace(instruction, frames=tuple(map(moved.frame, instruction.frames)))
            for instruction in self.instructions
        )
        return MachineCode(instructions, self.loops)

    def depth(self, instruction: Instruction) -> int:
        """How many loops are around an instruction."""
        return sum(first <= instruction.address <= last for first, last in self.loops)


def read_machine_code(listing: str, function: str | None = None) -> MachineCode:
    """The code of `function` (of all functions if None) in what `nvdisasm -c -gi` printed."""
    instructions: list[Instruction] = []
    labels: dict[str, int] = {}
    pending: list[str] = []
    frames: tuple[Frame, ...] = ()
    comments: list[Frame] = []
    inside = function is None
    for line in listing.splitlines():
        if section := _SECTION.match(line):
            inside = function in (None, section[1])
        elif not inside:
            continue
        elif label := _LABEL.match(line):
            pending.append(label[1])
        elif comment := _LINE.search(line):
            comments.append(Frame(unescaped(comment[1]), int(comment[2])))  # ptxas copies what PTX says
        elif match := _INSTRUCTION.search(line):
            frames, comments = tuple(comments) or frames, []
            address = int(match[1], 16)
            labels |= dict.fromkeys(pending, address)
            pending = []
            instructions.append(Instruction(address, match[2] or "", match[3], match[4], frames))
    return MachineCode(tuple(instructions), _loops(instructions, labels))


def _loops(instructions: list[Instruction], labels: dict[str, int]) -> tuple[tuple[int, int], ...]:
    """Where a branch goes back; branches to one place are one loop. A branch to itself, after the end, is none."""
    ends: dict[int, int] = {}
    for instruction in instructions:
        target = _TARGET.search(instruction.operands)
        if instruction.opcode.split(".")[0] in _BRANCHES and target and target[1] in labels:
            first = labels[target[1]]
            if first < instruction.address:
                ends[first] = max(ends.get(first, 0), instruction.address)
    return tuple(sorted(ends.items()))


def width(instruction: Instruction) -> int:
    """Bytes that a thread asks for in a load or store of machine code."""
    parts = instruction.opcode.split(".")
    sizes = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1, "16": 2, "8": 1}
    return next((sizes[part] for part in parts if part in sizes), 4)
