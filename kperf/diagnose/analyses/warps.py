"""What a kernel's warps cost an SM's issue slots, as it is and compiled with others."""

from collections.abc import Iterable

from kperf.diagnose.analyses.occupancy import held_ctas
from kperf.diagnose.analyses.recompiled import with_change
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, TMA_LOADS, own
from kperf.diagnose.reading.options import MOST_WARPS
from kperf.diagnose.thresholds import MEDIUM_GAIN, OTHERS_A_CYCLE
from kperf.errors import UsageError
from kperf.ir.machine import Instruction, MachineCode
from kperf.ir.ttgir import Operation

_MEMORY = ("LD", "ST", "ATOM", "RED", "SHFL")
"""Beginnings of the opcodes that go through an SM's load/store units, which take one where others start four."""
_OF_ROW = 16
"""Elements of a thread: two accesses of 16 bytes of bfloat16."""
_LEAST = 4
"""Warps of a CTA with a row: one for each scheduler."""
_SCHEDULERS = OTHERS_A_CYCLE
"""Of an SM: each issues one instruction a cycle."""


def issue_slots(code: MachineCode, warps: int) -> float:
    """Issue slots of an SM that so many warps of a CTA take: an iteration of each loop, or code without loops."""
    looping = [one for one in code.instructions if code.depth(one) > 0]
    return warps * slots(looping or code.instructions)


def issue_cycles(kernel: Kernel, loop: Operation) -> float:
    """Cycles in which an SM issues an iteration of a loop, of all CTAs that it holds; 0 where that is not known."""
    iteration = iteration_of(kernel, loop)
    if kernel.resources is None or not iteration:
        return 0.0
    return held_ctas(kernel) * kernel.total_warps * len(iteration) / _SCHEDULERS


def iteration_of(kernel: Kernel, loop: Operation) -> list[Instruction]:
    """The machine code of an iteration of a loop, or of as many as ptxas unrolled; empty where that is not known."""
    try:
        span = _span(kernel, loop)
    except UsageError:  # this target's machine code cannot be read here
        return []
    if span is None or kernel.code is None:
        return []
    return [one for one in kernel.code.instructions if span[0] <= one.address <= span[1]]


def warps_repeat_work(kernel: Kernel) -> bool:
    """Whether twice as many warps issue more together, as where each of them loads what another one loads too.

    More warps hide more of a latency, and share an SM's issue slots: where they take a tenth more of these, they lose.
    Of attention_bwd_dkdv 8 warps take 1.15 times as many slots, and its time 1.5 times as long; of w4a16_gemv 1.3
    times, and 2.3 times as long (H100).
    """
    warps = 2 * kernel.num_warps
    more = with_warps(kernel, warps)
    if more is None or more.code is None or kernel.code is None:
        return False
    return issue_slots(more.code, warps) > issue_slots(kernel.code, kernel.num_warps) * MEDIUM_GAIN


def spilled_with_warps(kernel: Kernel, warps: int) -> int | None:
    """Bytes of a thread's registers that are spilled with so many warps; None where it cannot be compiled so."""
    made = with_warps(kernel, warps)
    return made.resources.spilled_bytes if made is not None and made.resources is not None else None


def most_registers(kernel: Kernel, warps: int) -> int:
    """What a thread may have in a CTA of so many warps, in steps of 8 below the most that there are."""
    of_cta = kernel.arch.sm_registers // (warps * kernel.arch.warp_size)
    return min(kernel.arch.thread_registers, of_cta // 8 * 8)


def warps_change(kernel: Kernel, warps: int) -> dict[str, int]:
    """The options for so many warps: with the launch's own `maxnreg` a CTA may have fewer of them."""
    most = most_registers(kernel, warps)
    return {"num_warps": warps} | ({"maxnreg": most} if kernel.configuration.get("maxnreg", most) > most else {})


def warps_of_row(kernel: Kernel, elements: int) -> int:
    """As many warps as leave each thread `_OF_ROW` elements of a row, or more where a CTA has no more warps."""
    each = max(elements // (kernel.arch.warp_size * _OF_ROW), 1)
    return min(MOST_WARPS, max(_LEAST, 1 << each.bit_length() - 1))


def with_warps(kernel: Kernel, warps: int) -> Kernel | None:
    """The kernel compiled with so many warps; None and errors as of `with_change`."""
    return with_change(kernel, warps_change(kernel, warps))


def slots(instructions: Iterable[Instruction]) -> int:
    """Issue slots of an SM that instructions of a warp take."""
    return sum(OTHERS_A_CYCLE if one.opcode.startswith(_MEMORY) else 1 for one in instructions)


def _span(kernel: Kernel, loop: Operation) -> tuple[int, int] | None:
    """The innermost loop of machine code around what a loop loads: its first and its last address."""
    loads = (op for op in own(loop) if op.name in (*LOADS, *TMA_LOADS))
    addresses = [one.address for op in loads for one in kernel.instructions_of(op)]
    spans = [
        (last - first, first, last)
        for first, last in (kernel.code.loops if kernel.code is not None else ())
        if any(first <= address <= last for address in addresses)
    ]
    return min(spans)[1:] if spans else None
