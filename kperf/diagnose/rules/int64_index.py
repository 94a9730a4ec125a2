"""64-bit index arithmetic on tensors in a loop."""

from collections.abc import Iterator

from kperf.diagnose.analyses.loops import is_loaded_in
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import LOOPS, TMA_LOADS, loops_around, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.machine import width
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Finding

_COSTLY = ("arith.muli", "arith.divsi", "arith.remsi")
_ARITHMETIC = (*_COSTLY, "arith.addi", "arith.subi")
_PRODUCT = "arith.muli"
_WIDENED_LATE = "widen it only to multiply it by the stride, as index.to(tl.int64) * stride"
_REACHED = 1 << 31
"""Elements of a tensor within which 32 bits reach each one."""
_MANY = 128
"""Elements: those of a whole tile; a row of indices has fewer."""
_SMALL = 32
_BLOCK, _DESCRIPTOR = "!tt.ptr<tensor<", "!tt.tensordesc<"
_INTEGER = ("IADD", "IMAD", "LEA", "SHF.R")
_NO_INDICES = ("IMAD.MOV", "IMAD.U32", "IMAD.SHL")
"""Moves, and what makes a float32 of a bfloat16."""
_SAVED = 0.5
"""Of the instructions, at least: 32 bits take one where 64 take two to four."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of integer operations on tensors of i64 that each iteration does: on a tile, or multiplications of a row."""
    for loop in kernel.named(*LOOPS):
        for op in own(loop):
            if not _is_wide(op) or op.line not in kernel.index_lines:
                continue
            size = tensor_types(op.rest)[0].size
            many = size >= _MANY
            if (many or (op.name in _COSTLY and size >= _SMALL)) and (advice := _advice(kernel, loop, op)):
                gain, share = _gain(kernel)
                yield kernel.finding(
                    RULE.id,
                    op,
                    "medium" if gain >= MEDIUM_GAIN else "low",
                    f"each iteration computes {size} indices in 64 bits, which takes two to four times the "
                    "instructions and twice the registers of 32 bits",
                    advice,
                    {"elements": size, "share_of_instructions": share},
                    confidence="medium",
                    estimate=(max(gain, 1.05), 1.0, max(2 * gain - 1, 1.5 if many else 1.3)),
                )


def _advice(kernel: Kernel, loop: Operation, op: Operation) -> str:
    """By what computes them: a block pointer's have 64 bits, and a descriptor's where there is no TMA.

    Empty where 64 bits are the least: of a gathered row's place in a tensor that 32 bits do not reach across.
    """
    frame = frame_of(op)
    at = (frame.file, frame.line) if frame is not None else None
    if at in kernel.compiled.lines_with(_BLOCK) and TMA_LOADS[0] in kernel.arch.operations:
        return "instead of the block pointer use tl.make_tensor_descriptor, whose indices have 32 bits"
    for what, word in (("block pointer", _BLOCK), ("tensor descriptor", _DESCRIPTOR)):
        if at in kernel.compiled.lines_with(word):
            return f"instead of the {what} use pointers and masks, with 32-bit offsets"
    if _is_gathered(kernel, loop, op):
        return _of_gathered(kernel, loop, op)
    return "compute the tile's first address once before the loop, in 64 bits, and the offsets in the loop in 32 bits"


def _is_gathered(kernel: Kernel, loop: Operation, op: Operation) -> bool:
    """Whether the loop itself loads what the distances between these indices are, as the slots of a table."""
    values = (kernel.values.operand(op, place) for place in range(len(op.operands)))
    is_scattered = any(value is None or value.scattered for value in values)
    return is_scattered and any(is_loaded_in(kernel, loop, op, place) for place in range(len(op.operands)))


def _of_gathered(kernel: Kernel, loop: Operation, op: Operation) -> str:
    """Of rows that have no first address before the loop. Only an index times the length of a row may need 64 bits."""
    made = [op, *_sources(kernel, op)]
    if any(one.name in READS and loop in loops_around(one) and "i64" in one.rest.partition(" : ")[2] for one in made):
        return f"convert the loaded index to 32 bits, as index.to(tl.int32), and {_WIDENED_LATE}"
    wide = [one for one in made if _is_wide(one) and _is_gathered(kernel, loop, one)]
    sums = [one for one in wide if one.name != _PRODUCT]
    if any(all(source.name != _PRODUCT for source in _sources(kernel, one) if source in wide) for one in sums):
        return f"keep the loaded index in 32 bits, and {_WIDENED_LATE}"
    if sums:
        return "add index * stride to the pointer first, and then to that pointer the other offsets in 32 bits"
    largest = max(kernel.lengths.values(), default=0)
    if largest >= _REACHED:
        return ""
    reason = f"the launch's largest tensor has {largest} elements" if largest else "if no tensor has more elements"
    return f"leave the loaded index in 32 bits, which reach across 2^31 elements: {reason}"


def _sources(kernel: Kernel, op: Operation) -> list[Operation]:
    return [one for place in range(len(op.operands)) for one in kernel.values.sources(op, place, until=READS)]


def _is_wide(op: Operation) -> bool:
    types = tensor_types(op.rest) if op.name in _ARITHMETIC else []
    return bool(types) and types[0].element == "i64"


def _gain(kernel: Kernel) -> tuple[float, float]:
    """Without half of the integer arithmetic of its loops, and that arithmetic's share of their instructions.

    A scheduler issues one instruction a cycle. Where memory takes longer for the bytes that the loops load, nothing is
    gained: 1.00 x were measured of bfloat16 sums (H200).
    """
    loops = [one for one in kernel.code.instructions if kernel.code.depth(one)] if kernel.code is not None else []
    if not loops:
        return 1.0, 0.0
    integer = sum(one.opcode.startswith(_INTEGER) and not one.opcode.startswith(_NO_INDICES) for one in loops)
    cycles = kernel.total_warps / kernel.arch.sub_partitions
    loaded = sum(width(one) for one in loops if one.opcode.startswith("LDG")) * kernel.threads
    least = max((len(loops) - _SAVED * integer) * cycles, loaded / kernel.arch.memory_bytes_per_cycle)
    return max(len(loops) * cycles / least, 1.0), integer / len(loops)


RULE = Rule("int64-index", "64-bit index arithmetic in a loop", check)
