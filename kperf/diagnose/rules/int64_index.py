"""64-bit index arithmetic on tensors in a loop."""

from collections.abc import Iterator

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import LOOPS, TMA_LOADS, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.machine import width
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_COSTLY = ("arith.muli", "arith.divsi", "arith.remsi")
_ARITHMETIC = (*_COSTLY, "arith.addi", "arith.subi")
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
            types = tensor_types(op.rest) if op.name in _ARITHMETIC else []
            if not types or types[0].element != "i64" or op.line not in kernel.index_lines:
                continue
            many = types[0].size >= _MANY
            if many or (op.name in _COSTLY and types[0].size >= _SMALL):
                gain, share = _gain(kernel)
                yield kernel.finding(
                    RULE.id,
                    op,
                    "medium" if gain >= MEDIUM_GAIN else "low",
                    f"each iteration computes {types[0].size} indices in 64 bits, which takes two to four times the "
                    "instructions and twice the registers of 32 bits",
                    _advice(kernel, op),
                    {"elements": types[0].size, "share_of_instructions": share},
                    confidence="medium",
                    estimate=(max(gain, 1.05), 1.0, max(2 * gain - 1, 1.5 if many else 1.3)),
                )


def _advice(kernel: Kernel, op: Operation) -> str:
    """By what computes them: a block pointer's have 64 bits, and a descriptor's where there is no TMA."""
    frame = frame_of(op)
    at = (frame.file, frame.line) if frame is not None else None
    if at in kernel.compiled.lines_with(_BLOCK) and TMA_LOADS[0] in kernel.arch.operations:
        return "instead of the block pointer use tl.make_tensor_descriptor, whose indices have 32 bits"
    for what, word in (("block pointer", _BLOCK), ("tensor descriptor", _DESCRIPTOR)):
        if at in kernel.compiled.lines_with(word):
            return f"instead of the {what} use pointers and masks, with 32-bit offsets"
    return "compute the tile's first address once before the loop, in 64 bits, and the offsets in the loop in 32 bits"


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
