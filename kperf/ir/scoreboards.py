"""Which instructions an instruction waits for: those whose results it uses and that end at no fixed time.

An instruction of fixed latency is waited for by a count in the code. A load, a shuffle or `MUFU` sets a scoreboard; the
hardware samples the warp at the instruction that *uses* the result. Whose result that is, the registers say.
"""

import re
from bisect import bisect_left
from collections import defaultdict

from kperf.ir.machine import Instruction, MachineCode

FROM_GLOBAL = ("LDG", "LD", "LDL", "ATOM", "ATOMG", "RED", "LDGSTS", "TEX", "TLD")
"""What a warp waits for as `long_scoreboard`: L1's, L2's and device memory."""
FROM_SHARED = ("LDS", "LDSM", "ATOMS", "MUFU", "SHFL", "S2R", "I2F", "F2I", "LDC")
"""Likewise as `short_scoreboard`: shared memory, and units that answer through the same queue."""
_WITHOUT_RESULT = ("ST", "STG", "STS", "STL", "BRA", "EXIT", "BAR", "RED", "DEPBAR", "LDGDEPBAR", "SYNCS", "LDGSTS")
_INTO_PREDICATES = re.compile(r"U?[A-Z]+SETP2?")
_REGISTER = re.compile(r"\b(U?R)(\d+)\b(?:\.(64))?")
_PREDICATES = re.compile(r"^(?:U?P[T\d]\s*,\s*)+")

_Register = tuple[str, int]


class Scoreboards:
    """The instructions of one function, by the registers that they write.

    It is made once for a kernel: unrolled code has a hundred thousand instructions, samples at most of them, and many
    registers that nothing writes before they are used.
    """

    def __init__(self, code: MachineCode) -> None:
        """Note the places at which each register is written."""
        self._code = code
        self._places = {instruction.address: place for place, instruction in enumerate(code.instructions)}
        self._copies = [each for each in code.instructions if each.opcode.startswith("LDGSTS")]
        self._writers: defaultdict[_Register, list[int]] = defaultdict(list)
        for place, instruction in enumerate(code.instructions):
            for register in _written(instruction):
                self._writers[register].append(place)

    def producers(self, address: int, opcodes: tuple[str, ...]) -> list[Instruction]:
        """Instructions with one of these opcodes whose results the instruction at `address` waits for, each once.

        Of each register the last that writes it before; in a loop, of the iteration before too. `DEPBAR` waits for all
        asynchronous copies: an H200's samples of that wait are at its line and not at `DEPBAR`, so those at the barrier
        behind it are taken for them. What waits at an mbarrier, as for TMA, names no register of theirs: of it nothing
        is known.
        """
        place = self._places.get(address)
        if place is None:
            return []
        instructions = self._code.instructions
        waiting = instructions[place]
        follows_copies = place > 0 and instructions[place - 1].opcode.startswith("DEPBAR")
        if waiting.opcode.startswith("DEPBAR") or (follows_copies and waiting.opcode.startswith("BAR")):
            return self._copies if "LDGSTS" in opcodes else []
        loop = self._innermost_loop(place)
        last_writers = {self._last_writer(register, place, loop) for register in _used(waiting)}
        written_by = [instructions[writer] for writer in sorted(last_writers - {-1})]
        return [instruction for instruction in written_by if instruction.opcode.split(".")[0] in opcodes]

    def _last_writer(self, register: _Register, place: int, loop: tuple[int, int]) -> int:
        """Where the register is written before a place, or -1; before the loop's first place comes its last."""
        writers = self._writers.get(register, [])
        first, last = loop
        before = bisect_left(writers, place)
        if before and writers[before - 1] >= first:
            return writers[before - 1]
        inside = bisect_left(writers, last + 1)
        if inside and writers[inside - 1] >= place:
            return writers[inside - 1]
        return writers[before - 1] if before else -1

    def _innermost_loop(self, place: int) -> tuple[int, int]:
        """The places of its first and last instruction; of no loop, `place` and the one before it."""
        here = self._code.instructions[place].address
        around = [loop for loop in self._code.loops if loop[0] <= here <= loop[1]]
        if not around:
            return 0, place - 1
        first, last = max(around)
        return self._places[first], self._places[last]


def _used(instruction: Instruction) -> set[_Register]:
    """The registers that it names besides its result; of a tuple the first two, one of which its load writes too."""
    operands = _PREDICATES.sub("", instruction.operands)
    if _written(instruction):
        operands = operands.partition(",")[2]
    named = _REGISTER.findall(operands)
    return {(kind, int(number) + more) for kind, number, wide in named for more in range(2 if wide else 1)}


def _written(instruction: Instruction) -> set[_Register]:
    """The registers of its result: the first operand, as wide as the opcode says."""
    opcode, *modifiers = instruction.opcode.split(".")
    result = _REGISTER.match(_PREDICATES.sub("", instruction.operands))
    if result is None or opcode in _WITHOUT_RESULT or _INTO_PREDICATES.fullmatch(opcode):
        return set()
    words = next((int(bits) // 32 for bits in modifiers if bits in ("64", "128")), 1)
    if opcode == "LDSM":
        words = int(modifiers[-1]) if modifiers[-1].isdecimal() else 1
    elif "WIDE" in modifiers or result[3]:
        words = 2
    return {(result[1], int(result[2]) + more) for more in range(words)}
