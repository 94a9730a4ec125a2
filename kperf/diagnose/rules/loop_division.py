"""Division and remainder of index tensors in a loop, and of each element, index or data, that a kernel moves."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kperf.arch import H200, H200_L2_KEPT_BYTES
from kperf.diagnose.divisions import (
    CALLED,
    DIVISIONS,
    LEAST_ELEMENTS,
    LONG,
    SHORT,
    distinct,
    division_cycles,
    divisor_of,
    instructions_of,
    is_data,
    is_of_elements,
    numbers_of_thread,
)
from kperf.diagnose.kernel import LOOPS, STORES, TMA_LOADS, Access, Kernel, frame_of, lines_of, own
from kperf.diagnose.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SECTOR_BYTES, SEVERE_GAIN
from kperf.diagnose.waves import COPIED_SHARE
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_MOST = 8.0
"""What is left of the loop waits for memory."""
_WRITTEN = 29
"""Instructions that the machine code has of a division of 64 bits, beside the routine: `LONG`, and the call."""
_CALIBRATED = 0.8
"""Of the logarithm of what the cycles give: 2.33 x by the cycles were 1.98 x measured (H100, 64 bits, two a number)."""
_BY_TMA = (*TMA_LOADS, "ttng.async_tma_copy_local_to_global")


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of divisions of indices that each iteration does, and of all others that take longer than the bytes."""
    loops = list(kernel.named(*LOOPS))
    if not loops:
        yield from _of_elements(kernel)
    yield from _in_loops(kernel)
    for loop in loops:
        yield from _of_data(kernel, loop)


def _in_loops(kernel: Kernel) -> Iterator[Finding]:
    """Of divisions of tensors, by anything but a power of two, that each iteration does."""
    for loop in kernel.named(*LOOPS):
        divided = [(op, divisor_of(kernel, op)) for op in own(loop) if op.name in DIVISIONS]
        for op, number in divided:
            types = tensor_types(op.rest)
            shifted = number and number & (number - 1) == 0
            if not types or types[0].size < LEAST_ELEMENTS or shifted or is_data(kernel, op):
                continue
            gain = _gain(kernel, [other for other, its in divided if (its == 0) == (number == 0)])
            most = 2 * gain - 1 if number else _MOST
            costly = "a number known only at run time, which takes some twenty instructions for"
            by = f"{number}, which takes a multiplication and shifts for" if number else costly
            constant = "" if number else "make the divisor a tl.constexpr, "
            yield kernel.finding(
                RULE.id,
                op,
                "low" if number and gain < MEDIUM_GAIN else "medium",
                f"each iteration divides {types[0].size} indices by {by} each index",
                f"carry quotient and remainder from iteration to iteration in variables, {constant}or write a loop for "
                "each dimension",
                {"elements": types[0].size, "divisor": number},
                confidence="medium",
                estimate=(gain, 1.0, most),
            )


def _gain(kernel: Kernel, divisions: Sequence[Operation]) -> float:
    """Without the instructions on the lines of the divisions, by what share of the loops' machine code they are."""
    lines = {(at.file, at.line) for op in divisions if (at := frame_of(op)) is not None}
    loops = [one for one in kernel.code.instructions if kernel.code.depth(one)] if kernel.code is not None else []
    if not lines or not loops:
        return 1.3
    share = sum(one.frame is not None and (one.frame.file, one.frame.line) in lines for one in loops) / len(loops)
    return 1 / max(1 - share, 1 / 3)  # a loop on one line is not all division


@dataclass(frozen=True)
class _Cost:
    """Cycles of an SM that a CTA takes: of its divisions, of its other instructions, and of memory for its bytes."""

    divisions: float
    others: float
    memory: float

    @property
    def gain(self) -> float:
        """Without the divisions."""
        return max(self.divisions + self.others, self.memory) / max(self.others, self.memory)

    @property
    def most(self) -> float:
        """If memory alone is left: a scalar index spares each thread its gathers too."""
        return max(self.divisions + self.others, self.memory) / self.memory


def _of_elements(kernel: Kernel) -> Iterator[Finding]:
    """Of a kernel without loops: its divisions together, if they do not hide behind its loads and stores.

    Of quotient and remainder of the same numbers one is computed. A launch of fewer CTAs than SMs waits for latencies.
    """
    operations = distinct(op for op in kernel.operations if is_of_elements(kernel, op))
    cost = _cost(kernel, operations) if operations and not _is_small(kernel) else None
    if cost is not None:
        yield from _of_cost(kernel, operations, cost, "a CTA")


def _of_data(kernel: Kernel, loop: Operation) -> Iterator[Finding]:
    """Of an iteration: its divisions of data, if they do not hide behind its bytes and MMAs."""
    iteration = list(own(loop))
    operations = distinct(op for op in iteration if is_of_elements(kernel, op) and is_data(kernel, op))
    others = [op for op in iteration if op.name not in DIVISIONS]
    least = bytes_or_mma_cycles(kernel, others) / COPIED_SHARE
    if not operations or not least or _is_small(kernel):
        return
    took = division_cycles(kernel, operations)
    yield from _of_cost(kernel, operations, _Cost(took, arithmetic_cycles(kernel, others), least), "an iteration")


def _is_small(kernel: Kernel) -> bool:
    """Whether a launch has fewer CTAs than SMs."""
    return kernel.grid is not None and math.prod(kernel.grid) < H200.sms


def _of_cost(kernel: Kernel, operations: Sequence[Operation], cost: _Cost, whose: str) -> Iterator[Finding]:
    """Of divisions that the cycles of a CTA, or of an iteration, show to be worth it."""
    if (likely := cost.gain**_CALIBRATED) < MEDIUM_GAIN:
        return
    costliest = max(operations, key=lambda op: instructions_of(kernel, op))
    tensor = tensor_types(costliest.rest)[0]
    times = "" if len(operations) == 1 else f"{len(operations)} times "
    numbers = "numbers" if any(is_data(kernel, op) for op in operations) else "indices"
    also = f" (likewise on {also})" if (also := lines_of(operations, costliest)) else ""
    yield kernel.finding(
        RULE.id,
        costliest,
        "high" if likely >= SEVERE_GAIN else "medium",
        f"{whose} divides {tensor.size} {numbers} {times}by a number known only at run time, in {8 * tensor.bytes} bits"
        f"{also}: this takes some {cost.divisions:.0f} cycles of an SM, all other instructions take "
        f"{cost.others:.0f} cycles, and memory takes {cost.memory:.0f} cycles to move the bytes",
        _advice(kernel, operations),
        {
            "elements": tensor.size,
            "divisions": len(operations),
            "bits": 8 * tensor.bytes,
            "division_cycles": cost.divisions,
            "other_cycles": cost.others,
            "memory_cycles": cost.memory,
        },
        confidence="medium",
        estimate=(likely, 1.0, min(max(cost.most, likely), _MOST)),
    )


def _cost(kernel: Kernel, divisions: Sequence[Operation]) -> _Cost | None:
    """None of a kernel whose bytes are not known."""
    moved = sum(_moved_bytes(kernel, access) for access in kernel.accesses)
    by_tma = (tensor_types(op.rest) for op in kernel.named(*_BY_TMA))
    moved += sum(max((tensor.size * tensor.bytes for tensor in types), default=0) for types in by_tma)
    known = {access.operation.line for access in kernel.accesses}
    if not moved or any(tensor_types(op.rest) and op.line not in known for op in kernel.named("tt.load", *STORES)):
        return None
    times = [(op, numbers_of_thread(kernel, op)) for op in divisions]
    others = arithmetic_cycles(kernel, kernel.operations)
    if kernel.code is not None:
        code = kernel.code.instructions
        end = max((place for place, one in enumerate(code, 1) if one.opcode == "EXIT"), default=len(code))
        written = sum(count * (_WRITTEN if instructions_of(kernel, op) > SHORT else SHORT) for op, count in times)
        others = max(end - written, 0) * kernel.total_warps / kernel.arch.sub_partitions
    return _Cost(
        division_cycles(kernel, divisions), others, moved / (COPIED_SHARE * kernel.arch.memory_bytes_per_cycle)
    )


def _moved_bytes(kernel: Kernel, access: Access) -> float:
    """Of a CTA: all CTAs together read a tensor that L2 holds once."""
    sectors = access.tile_sectors * SECTOR_BYTES
    bases = [
        name for name in access.value.arguments if name in kernel.lengths and kernel.values.is_in(access.value, name)
    ]
    if kernel.grid is None or len(bases) != 1:
        return sectors
    whole = kernel.lengths[bases[0]] * access.tensor.bytes
    return min(sectors, whole / math.prod(kernel.grid)) if whole <= H200_L2_KEPT_BYTES else sectors


def _advice(kernel: Kernel, divisions: Sequence[Operation]) -> str:
    """An index that is loaded has no axis of the grid, and an index of many gigabytes has 64 bits."""
    dividends = [kernel.values.operand(op, 0) for op in divisions]
    divisors = [kernel.values.operand(op, 1) for op in divisions]
    of_data = any(is_data(kernel, op) for op in divisions)
    constant = any(one is not None and one.arguments and not one.loaded and not one.program for one in divisors)
    made_constant = "make the divisors tl.constexpr"
    ways = []
    if of_data:
        ways.append(
            f"{made_constant}, so that a division is a multiplication and a shift (each value compiles the kernel once)"
        )
    elif not any(one is not None and one.loaded for one in dividends):
        ways.append(
            "give what the divisions compute, such as the row, an axis of the grid or an outer loop, so that it is a "
            "scalar"
        )
    if of_data and any(instructions_of(kernel, op) == CALLED for op in divisions):
        ways.append("divide in 32 bits, as of x.to(tl.uint32) where x is a hash")
    elif any(instructions_of(kernel, op) == LONG for op in divisions):
        ways.append("divide in 32 bits" if of_data else "compute the indices in 32 bits")
    if constant and not of_data:
        ways.append(made_constant)
    if any(op.name.startswith("arith.rem") and is_data(kernel, op) for op in divisions):
        ways.append("make the size n a power of two and write x & (n - 1)")
        ways.append("take tl.umulhi(x, n) of a 32-bit hash x, which spreads it over 0 to n - 1 too")
    return "; or ".join(ways) or "compute the quotients before the launch"


RULE = Rule("loop-division", "Division by a number known at run time", check)
