"""Tensors of pointers, or of offsets, that a loop takes from the loop around it, advances, and hands back."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kperf.arch import H200
from kperf.console import agreeing
from kperf.diagnose.analyses.loops import always, carried, reached, read, repeated
from kperf.diagnose.analyses.occupancy import held_ctas, mma_cycles
from kperf.diagnose.analyses.warps import iteration_of, slots
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import lines_of
from kperf.diagnose.reading.operations import MMAS, loops_around, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import DEPENDENT_CYCLES, MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import TensorType, tensor_types
from kperf.ir.machine import Instruction, width
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_ADVANCES = ("tt.addptr", "arith.addi", "arith.subi", "arith.select")
_CONVERTS = "ttg.convert_layout"
_FOLLOWED = (*_ADVANCES, "arith.extsi", "arith.cmpi", "arith.andi", "tt.broadcast", "tt.expand_dims")
"""Through which pointers and masks are computed of what a loop carries, in its layout."""
_INTEGER = ("IADD", "IMAD", "LEA", "VIADD", "SEL", "MOV", "SHF")
_SHARED = ("STS", "LDS", "BAR")
_SPILLED = ("STL", "LDL")
_LEAST = 0.2
"""Of the loop's instructions: fewer hide among the rest."""


@dataclass(frozen=True)
class HandedBack:
    """A tensor that a loop advances in a layout that no access takes.

    advance: the operation that moves it by an iteration. parts: all that it costs an iteration. conversions: of these,
    the changes of layout through which loads and stores read it; none if the loop carries it a second time for them.
    registers: of a thread.
    """

    advance: Operation
    parts: tuple[Operation, ...]
    conversions: tuple[Operation, ...]
    registers: int


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the layouts in which loops carry pointers, and by the instructions that these take."""
    for loop in repeated(kernel):
        tensors = handed_back(kernel, loop)
        instructions = iteration_of(kernel, loop) if tensors else []
        needless = _needless(kernel, instructions, tensors)
        if len(needless) < _LEAST * len(instructions) or not needless:
            continue
        gain = _gain(kernel, loop, instructions, needless)
        first, registers = tensors[0].advance, sum(one.registers for one in tensors)
        others = lines_of([one.advance for one in tensors], first)
        conversions = sum(len(one.conversions) for one in tensors)
        yield kernel.finding(
            RULE.id,
            first,
            "high" if gain >= SEVERE_GAIN else "medium" if gain >= MEDIUM_GAIN else "low",
            f"the outer loop carries these pointers{f' (also {others})' if others else ''} through the inner loop, so "
            "the compiler keeps them in a layout that no load or store takes: they take "
            f"{registers} registers a thread, {_in_words(conversions)}and {len(needless)} of the inner loop's "
            f"{len(instructions)} instructions",
            "compute the pointers anew before the inner loop, from the index of the outer loop: let no tensor of "
            "pointers or offsets pass from one iteration of the outer loop to the next",
            {
                "registers": registers,
                "conversions": conversions,
                "instructions": len(instructions),
                "needless_instructions": len(needless),
            },
            confidence="medium",
            estimate=(max(gain, 1.05), 1.0, max(1.5 * gain, 1.3)),
        )


def _in_words(conversions: int) -> str:
    if not conversions:
        return ""
    return f"{conversions} {agreeing(conversions, 'conversion', 'conversions')} through shared memory an iteration, "


def handed_back(kernel: Kernel, loop: Operation) -> list[HandedBack]:
    """Of a loop inside another one: Triton gives what one loop carries the layout of its accesses, not what two do."""
    found = []
    for place, (begin, end) in enumerate(carried(loop) if loops_around(loop) else ()):
        moves = _moves(kernel, loop, begin, end)
        conversions = _conversions(loop, moves, begin) if moves and _is_read_behind(kernel, loop, place) else None
        places = kernel.layouts.elements(_tensor(moves[0])) if conversions is not None else None
        if conversions is not None and places is not None and places.shape[1] > 1:
            registers = places.shape[1] * (1 if _tensor(moves[0]).element == "i32" else 2)
            found.append(HandedBack(moves[0], (*moves, *conversions), tuple(conversions), registers))
    return found


def _moves(kernel: Kernel, loop: Operation, begin: str, end: str) -> list[Operation]:
    """The additions that make a tensor of pointers or offsets of the last iteration's one; empty if others make it."""
    moving, path = reached(loop, [begin]), {end}
    made = [op for op in always(loop) if set(op.results) & moving]
    for op in reversed(made):
        if path & set(op.results):
            path |= read(op) & moving
    moves = [op for op in made if set(op.results) & path]
    return moves if begin in path and all(_is_move(kernel, op) for op in moves) else []


def _is_move(kernel: Kernel, op: Operation) -> bool:
    """Whether it moves pointers or offsets by what is known without data: a count of what was loaded is none."""
    if op.name not in _ADVANCES or not tensor_types(op.rest):
        return False
    by = kernel.values.operand(op, 1)
    return _tensor(op).element.startswith(("!tt.ptr", "i32", "i64")) and by is not None and not by.scattered


def _tensor(op: Operation) -> TensorType:
    """What an addition or a selection gives."""
    return next(one for one in tensor_types(op.rest) if one.element != "i1")


def _is_read_behind(kernel: Kernel, loop: Operation, place: int) -> bool:
    """Whether anything reads what a loop ends with in this place."""
    names = {loop.results[0], f"{loop.results[0]}#{place}"} if loop.results else set()
    return any(op.operands[at] in names for op, at in kernel.readers.get(loop.line, ()))


def _conversions(loop: Operation, moves: Sequence[Operation], begin: str) -> list[Operation] | None:
    """The changes of layout through which a loop reads what it carries; None if it reads it as it is."""
    names, found = {begin, *(name for op in moves for name in op.results)}, list[Operation]()
    for op in own(loop):
        if op in moves or op.name == "scf.yield" or not names & read(op):
            continue
        if op.name == _CONVERTS:
            found.append(op)
        elif op.name in _FOLLOWED:
            names |= set(op.results)
        else:
            return None
    return found


def _needless(kernel: Kernel, instructions: Sequence[Instruction], tensors: Sequence[HandedBack]) -> list[Instruction]:
    """Integers at the lines of these tensors, what goes through shared memory for them, and what they spill."""
    of_lines = {one.address for tensor in tensors for op in tensor.parts for one in kernel.instructions_of(op)}
    kinds = _INTEGER + (_SHARED if any(tensor.conversions for tensor in tensors) else ())
    return [
        one
        for one in instructions
        if (one.address in of_lines and one.opcode.startswith(kinds)) or one.opcode.startswith(_SPILLED)
    ]


def _gain(
    kernel: Kernel, loop: Operation, instructions: Sequence[Instruction], needless: Sequence[Instruction]
) -> float:
    """By an SM's issue slots, with what else an iteration of a CTA takes: its MMAs, and the bytes that it loads.

    The operands of MMAs are from L2. Each instruction is taken to need the one before it, so that a scheduler with two
    warps issues in half of its cycles: a GEMM with 128 x 64 x 32 tiles took 394 cycles an iteration of 185. Of it this
    estimates 1.9 x, and 2.36 x were measured, with the larger tiles whose registers are free then (H200).
    """
    resident = held_ctas(kernel)
    warps = kernel.total_warps / kernel.arch.sub_partitions
    loaded = sum(width(one) for one in instructions if one.opcode.startswith("LDG")) * kernel.threads
    multiplies = any(op.name in MMAS for op in own(loop))
    rate = H200.l2_bytes_per_cycle if multiplies else kernel.arch.memory_bytes_per_cycle
    least = max(mma_cycles(kernel, own(loop)), loaded / rate, 1.0)

    def cycles(of: Sequence[Instruction]) -> float:
        return max(warps * slots(of), len(of) * max(warps, DEPENDENT_CYCLES / resident), least)

    return cycles(instructions) / cycles([one for one in instructions if one not in needless])


RULE = Rule("pointers-through-loops", "Pointers that two loops carry", check, needs="machine code", targets=("sm_",))
