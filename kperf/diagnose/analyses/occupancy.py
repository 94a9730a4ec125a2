"""How many CTAs of a kernel fit on an SM, how many would with other registers, and what more bytes in flight give."""

import math
import re
from collections.abc import Iterable

from kperf.arch import H200
from kperf.arch.instructions import DIVISION, DIVISION_OF_ROW, MATH, ONE, Price, of_function
from kperf.diagnose.analyses.loops import buffers
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import (
    LOADS,
    LOOPS,
    MMAS,
    TMA_LOADS,
    TMA_STORES,
    loops_around,
    mma_element,
    mma_shape,
    own,
)
from kperf.diagnose.thresholds import FEW_WARPS_ON_SM, LEAST_SM_BYTES, SM_BYTES_IN_FLIGHT, VECTOR_BYTES
from kperf.ir.layouts import element_bytes, tensor_types
from kperf.ir.ttgir import Operation

_INTEGERS = 2
"""A multiplication of 32-bit integers runs at half the rate of float32, and one of 64 bits is four of them."""
_MULTIPLIED = ("arith.muli", "tt.mulhiui", "arith.mulsi_extended", "arith.mului_extended")
_REPEATED = ("tt.broadcast", "tt.splat")
"""What gives many elements the same number."""
_FREE = ("arith.constant", "arith.bitcast", "arith.extui", "arith.extsi", "arith.trunci")


def ctas(
    kernel: Kernel, *, registers: int | None = None, shared_bytes: int | None = None, warps: int | None = None
) -> int:
    """CTAs that an SM holds at once, of the kernel with other registers a thread, shared bytes or warps a CTA."""
    assert kernel.resources is not None
    return kernel.arch.ctas_per_sm(
        kernel.resources.registers if registers is None else registers,
        kernel.resources.shared_bytes if shared_bytes is None else shared_bytes,
        kernel.total_warps if warps is None else warps,
    )


def gain_of_more_bytes(kernel: Kernel, bytes_of_cta: float) -> tuple[float, float, float]:
    """Speed-up, low, high if each CTA loads more at once, by Little's law; 3.1 of it were 3.3 measured (H200).

    No more than a launch waits for memory, one time after another: in each of its waves, and in each iteration of a
    loop. A launch of one wave without loops asks for all its bytes at once as it is.
    """
    if kernel.resources is None:
        return 1.5, 1.0, 4.0
    lacking = LEAST_SM_BYTES / max(ctas(kernel) * bytes_of_cta, 1)
    waits = max(waves_of(kernel), 1.0) * max((_iterations(kernel, loop) for loop in kernel.named(*LOOPS)), default=1)
    return min(max(lacking, 1.2), 8.0, waits), 1.0, min(max(1.5 * lacking, 2.0), 16.0, 2 * waits)


def waves_of(kernel: Kernel) -> float:
    """How often a launch fills an H200 with CTAs, one time after another; infinity if that is not known."""
    return math.inf if kernel.grid is None else math.prod(kernel.grid) / (_fitting(kernel) * H200.sms)


def _iterations(kernel: Kernel, loop: Operation) -> float:
    """Of a loop and the loops around it together; infinity if the launch does not say it."""
    counts = [kernel.iterations(one) for one in (loop, *loops_around(loop))]
    return math.prod(math.inf if count is None else max(count, 1) for count in counts)


def bytes_at_once(kernel: Kernel) -> int:
    """What a CTA asks for before it waits, in the loop that asks for most, which fills its buffers; without loops all.

    Beside the loop that moves tiles, another one may load a few indices.
    """
    size = _loaded_bytes(kernel)
    of_loops = []
    for loop in kernel.named(*LOOPS):
        filled = {op.line: count for op, count, _ in buffers(kernel, loop)}
        of_loops.append(sum(size.get(op.line, 0) * filled.get(op.line, 1) for op in own(loop)))
    return max(filter(None, of_loops), default=sum(size.values()))


def least_ctas(kernel: Kernel) -> int:
    """CTAs on an SM that ask for enough bytes at once to keep memory busy; no more than fit.

    Of few warps more bytes are enough, as few issue loads while others wait.
    """
    fit, each = ctas(kernel), bytes_at_once(kernel)

    def enough(count: int) -> bool:
        least = SM_BYTES_IN_FLIGHT if count * kernel.total_warps < FEW_WARPS_ON_SM else LEAST_SM_BYTES
        return count * each >= least

    return next(filter(enough, range(1, fit + 1)), fit)


def ctas_of_sm(count: int) -> int:
    """Of so many CTAs those of one SM of an H200; of the SMs with most where they are no multiple."""
    return math.ceil(count / H200.sms)


def launched_ctas(kernel: Kernel) -> int:
    """CTAs of the launch for each SM, of an H200."""
    assert kernel.grid is not None
    return ctas_of_sm(math.prod(kernel.grid))


def held_ctas(kernel: Kernel) -> int:
    """CTAs that the SMs with most of them hold at once in the launch; as many as fit where no launch is known.

    One where that is not known either.
    """
    fit = _fitting(kernel)
    return fit if kernel.grid is None else min(fit, launched_ctas(kernel))


def _fitting(kernel: Kernel) -> int:
    """CTAs that fit on an SM; one where that is not known."""
    return max(ctas(kernel), 1) if kernel.resources is not None else 1


def resident_ctas(kernel: Kernel, *, shared_bytes: int | None = None) -> int:
    """CTAs that every SM holds at once in the launch, of the kernel with other shared bytes a CTA.

    One where that is not known, and of launches of fewer CTAs than SMs.
    """
    if kernel.resources is None or kernel.grid is None:
        return 1
    return max(min(ctas(kernel, shared_bytes=shared_bytes), math.prod(kernel.grid) // H200.sms), 1)


def arithmetic_bounds(kernel: Kernel, loop: Operation) -> bool:
    """Whether an iteration of a loop without MMAs computes for longer than memory takes for its bytes."""
    return arithmetic_cycles(kernel, own(loop)) > moved_bytes(kernel, own(loop)) / kernel.arch.memory_bytes_per_cycle


def moved_bytes(kernel: Kernel, operations: Iterable[Operation]) -> int:
    """What a CTA's loads and stores among these ask for."""
    size = {access.operation.line: access.asked_bytes for access in kernel.accesses}
    return sum(size.get(op.line, 0) for op in operations)


def bytes_of_cta(kernel: Kernel) -> int:
    """What all loads and stores of a CTA ask for, in all iterations of its loops."""
    moved = sum(access.asked_bytes * kernel.times(access.operation) for access in kernel.accesses)
    for op in kernel.named(*TMA_LOADS, *TMA_STORES):
        tile = max((tensor.size * tensor.bytes for tensor in tensor_types(op.rest)), default=0)
        moved += tile * kernel.times(op)
    return moved


def bytes_or_mma_cycles(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Cycles of an SM for a CTA's bytes and MMAs among these operations, whichever take longer."""
    operations = list(operations)
    return max(moved_bytes(kernel, operations) / kernel.arch.memory_bytes_per_cycle, mma_cycles(kernel, operations))


def mma_cycles(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Cycles of an SM for a CTA's MMAs among these operations, at the tensor cores' rate."""
    shapes = ((op, mma_shape(op)) for op in operations if op.name in MMAS)
    return sum(2 * math.prod(shape) / mma_rate(kernel, op) for op, shape in shapes if shape is not None)


def mma_rate(kernel: Kernel, mma: Operation) -> float:
    """Operations that the tensor cores of an SM do in a cycle, with operands of this MMA's type."""
    return kernel.arch.flop_per_cycle["bf16"] * 2 / element_bytes(mma_element(mma))


def arithmetic_cycles(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Cycles of an SM for what a CTA computes of its data, and not of indices, in these operations."""
    arch, cycles, indices = kernel.arch, 0.0, kernel.index_lines
    for op in operations:
        types = tensor_types(op.rest)
        if not types or op.line in indices:
            continue
        if op.name in _MULTIPLIED or (op.name.startswith("arith.") and types[0].element == "i64"):
            cycles += _INTEGERS * (types[0].bytes // 4 or 1) ** 2 * types[0].size / arch.fp32_per_cycle
        elif (price := _price(kernel, op)) is not None:
            each = max(price.instructions / arch.fp32_per_cycle, price.special / arch.exponentials_per_cycle)
            cycles += each * types[0].size
    return cycles


def _price(kernel: Kernel, op: Operation) -> Price | None:
    """Of an operation, for each element; None of what is no instruction, or none that computes."""
    if op.name == "arith.divf":
        return _division(kernel.values.maker(op, 1))
    if op.name == "tt.extern_elementwise":
        symbol = re.search(r'symbol = "(\w+)"', op.rest)
        return of_function(symbol[1] if symbol is not None else "")
    if op.name == "tt.reduce" or (op.name.startswith("arith.") and op.name not in _FREE):
        return ONE
    return MATH.get(op.name)


def _division(divisor: Operation | None) -> Price:
    """By what makes the divisor: a constant, a number for each row, or one for each element."""
    if divisor is not None and divisor.name == "arith.constant":
        return ONE
    return DIVISION_OF_ROW if divisor is not None and divisor.name in _REPEATED else DIVISION


def arithmetic_of_cta(kernel: Kernel, operations: Iterable[Operation]) -> float:
    """Cycles of an SM in which a CTA does these operations, as often as it does each of them."""
    return sum(kernel.times(op) * arithmetic_cycles(kernel, [op]) for op in operations)


def _loaded_bytes(kernel: Kernel) -> dict[int, int]:
    """What a CTA asks for, by the load's line."""
    return {access.operation.line: access.asked_bytes for access in kernel.accesses if access.operation.name in LOADS}


def warps_of_vectors(kernel: Kernel, size: int) -> int:
    """As many warps as give each thread a whole vector of so many bytes; no more than there are, and a power of two."""
    whole = max(size // (VECTOR_BYTES * kernel.arch.warp_size), 1)
    return min(1 << whole.bit_length() - 1, kernel.num_warps)
