"""Division and remainder of index tensors in a loop, of each element that a kernel moves, and of sums that can wait."""

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from kperf.arch import H200, H200_L2_KEPT_BYTES
from kperf.arch.instructions import CONSTANT_INTEGER_DIVISION
from kperf.diagnose.analyses.divisions import (
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
from kperf.diagnose.analyses.loops import is_loaded_in, largest_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, bytes_or_mma_cycles
from kperf.diagnose.analyses.remainders import Sum, sums_of_remainders
from kperf.diagnose.analyses.waves import COPIED_SHARE
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, STORES, TMA_LOADS, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import IN_LOOP, MEDIUM_GAIN, SECTOR_BYTES, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.ir.values import READS
from kperf.trace.analyze.finding import Finding

_MOST = 8.0
"""What is left of the loop waits for memory."""
_WRITTEN = 29
"""Instructions that the machine code has of a division of 64 bits, beside the routine: `LONG`, and the call."""
_CALIBRATED = 0.8
"""Of the logarithm of what the cycles give: 2.33 x by the cycles were 1.98 x measured (H100, 64 bits, two a number)."""
_LONG_BYTES, _SUM_BITS = 8, 63
"""Of the integers in which a sum of many terms fits: their bytes, and the bits of a number that is not negative."""
_SHORT_BYTES, _SHORT_TYPES = 4, ("i1", "i8", "i16", "i32")
_TOO_LARGE = 1 << 31
"""For 32 bits."""
_READ = (*READS, "ttg.local_load")
_ADDED = (
    "arith.addi", "arith.subi", "arith.extsi", "arith.extui", "arith.constant", "tt.splat", "tt.broadcast",
    "tt.expand_dims", "tt.reshape", "tt.make_range", "tt.get_program_id", "ttg.convert_layout",
)  # fmt: skip
"""Sums of a few numbers, and what hands numbers on as they are."""
_BY_TMA = (*TMA_LOADS, "ttng.async_tma_copy_local_to_global")


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of divisions of indices that each iteration does, and of all others that take longer than the bytes."""
    loops = list(kernel.named(*LOOPS))
    sums = sums_of_remainders(kernel)
    waiting = {op.line for one in sums for op in one.remainders}
    for around in (None, *loops):
        if beside := [one for one in sums if one.around is around]:
            yield from _of_sums(kernel, around, beside)
    if not loops:
        yield from _of_elements(kernel, waiting)
    yield from _in_loops(kernel, waiting)
    for loop in loops:
        yield from _of_data(kernel, loop, waiting)


def _of_sums(kernel: Kernel, around: Operation | None, sums: Sequence[Sum]) -> Iterator[Finding]:
    """Of sums of whose terms an iteration, or a CTA, takes remainders, where these take longer than what is left."""
    waiting = [op for one in sums for op in one.remainders]
    others = [op for op in (kernel.operations if around is None else own(around)) if op not in waiting]
    divisions = [op for op in others if op.name in DIVISIONS and tensor_types(op.rest)]
    once = [one.remainders[0] for one in sums if not one.is_reduced_later]
    left = arithmetic_cycles(kernel, [op for op in others if op.name not in DIVISIONS])
    left += division_cycles(kernel, divisions)
    left += division_cycles(kernel, once) / (IN_LOOP if around is None else kernel.iterations(around) or IN_LOOP)
    memory = bytes_or_mma_cycles(kernel, others) / COPIED_SHARE
    took = division_cycles(kernel, waiting)
    gain = min(max(took + left, memory) / max(left, memory, 1.0), _MOST)
    if gain < MEDIUM_GAIN:
        return
    costliest = max(waiting, key=lambda op: (instructions_of(kernel, op), -op.line))
    tensor = tensor_types(costliest.rest)[0]
    also = f" (likewise on {also})" if (also := lines_of(waiting, costliest)) else ""
    yield kernel.finding(
        RULE.id,
        costliest,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"{'a CTA' if around is None else 'each iteration'} takes the remainders of {tensor.size} terms of sums, in "
        f"{8 * tensor.bytes} bits{also}, where one of each whole sum gives the same: this takes some {took:.0f} cycles "
        f"of an SM, all other instructions take {left:.0f} cycles, and memory takes {memory:.0f} cycles to move the "
        "bytes",
        _of_whole_sums(kernel, sums, tensor.bytes),
        {
            "elements": tensor.size,
            "divisions": len(waiting),
            "bits": 8 * tensor.bytes,
            "division_cycles": took,
            "other_cycles": left,
            "memory_cycles": memory,
        },
        confidence="medium",
        estimate=(gain, 1.0, 2 * gain),
    )


def _of_whole_sums(kernel: Kernel, sums: Sequence[Sum], size: int) -> str:
    """What to write, and of which terms the sum fits. size: of a number, in bytes."""
    loop = sums[0].loop
    terms = kernel.iterations(loop) if loop is not None else None
    wider = " in tl.int64" if size < _LONG_BYTES else ""
    whole = "after the loop" if loop is not None else "of the whole sum"
    below = f"2^{_SUM_BITS - (terms - 1).bit_length()}" if terms else f"2^{_SUM_BITS} / n"
    return (
        f"add the terms as they are{wider}, acc += term, and take one remainder {whole}: the sum of {terms or 'n'} "
        f"terms fits in 64 bits if each of them is below {below}; of larger terms take one every few terms"
    )


def _in_loops(kernel: Kernel, waiting: Collection[int]) -> Iterator[Finding]:
    """Of divisions of tensors, by anything but a power of two, that each iteration does.

    waiting: lines of divisions that can wait, and are no part of it.
    """
    for loop in kernel.named(*LOOPS):
        operations = [op for op in own(loop) if op.name in DIVISIONS and op.line not in waiting]
        divided = [(op, divisor_of(kernel, op)) for op in operations]
        for op, number in divided:
            types = tensor_types(op.rest)
            shifted = number and number & (number - 1) == 0
            if not types or types[0].size < LEAST_ELEMENTS or shifted or is_data(kernel, op):
                continue
            share = _share(kernel, [other for other, its in divided if (its == 0) == (number == 0)])
            gathered = is_loaded_in(kernel, loop, op, 0)
            way = _way_of_gathered(kernel, op, number) if gathered else _Way(_way_of_counted(number), 1.0)
            if way is None:
                continue
            gain = 1 / (1 - share * way.saved)
            most = 1 / (1 - share) if gathered else 2 * gain - 1 if number else _MOST
            costly = "a number known only at run time, which takes some twenty instructions for"
            by = f"{number}, which takes a multiplication and shifts for" if number else costly
            yield kernel.finding(
                RULE.id,
                op,
                "low" if (number or gathered) and gain < MEDIUM_GAIN else "medium",
                f"each iteration divides {types[0].size} indices by {by} each index",
                way.words,
                {"elements": types[0].size, "divisor": number},
                confidence="medium",
                estimate=(gain, 1.0, most),
            )


@dataclass(frozen=True)
class _Way:
    """What to do about a division, in words, and the share of its instructions that this saves."""

    words: str
    saved: float


def _way_of_counted(number: int) -> str:
    """Of what a loop counts, so that each iteration's quotient follows from the last one's. number: 0 at run time."""
    constant = "" if number else "make the divisor a tl.constexpr, "
    return (
        f"carry quotient and remainder from iteration to iteration in variables, {constant}or write a loop for each "
        "dimension"
    )


def _way_of_gathered(kernel: Kernel, op: Operation, number: int) -> _Way | None:
    """Of what the loop itself loads, as the slots of a table: no iteration's quotient follows from the last one's.

    In 64 bits a constant divisor spares little. None of a constant in 32 bits, which is as cheap as a division gets.
    """
    fits = _has_32_bits(kernel, op)
    now = min(instructions_of(kernel, op), LONG) if fits else instructions_of(kernel, op)
    least = CONSTANT_INTEGER_DIVISION[_SHORT_BYTES]
    if now <= SHORT:
        made = f"make the divisor a tl.constexpr: a division then takes {least} instructions in place of {now}"
        return _Way(made, 1 - least / now) if not number else None
    then = least if number else SHORT
    sign, result = ("%", "remainder") if op.name.startswith("arith.rem") else ("//", "quotient")
    condition = "" if fits else "if the loaded numbers and the divisor are below 2^31, "
    constant = f", or {least} if n is a tl.constexpr too (alone, in 64 bits, a tl.constexpr leaves "
    constant += f"{CONSTANT_INTEGER_DIVISION[_LONG_BYTES]})"
    return _Way(
        f"{condition}divide in 32 bits and widen the {result} afterwards, as (x {sign} n).to(tl.int64) of x and n in "
        f"32 bits: a division then takes {then} instructions in place of {now}{'' if number else constant}",
        1 - then / now,
    )


def _has_32_bits(kernel: Kernel, op: Operation) -> bool:
    """Whether dividend and divisor are sums of numbers that have 32 bits until they are widened, or are such numbers.

    A sum of two of them may have 33, unless they are far from 2^31, as numbers of rows are.
    """
    made = [one for place in (0, 1) for one in kernel.values.sources(op, place, until=_READ)]
    names = {name.removeprefix("%") for one in (op, *made) if one.name not in _READ for name in one.operands}
    wide = [name for name, one in kernel.parameters.items() if name in names and one.type not in _SHORT_TYPES]
    return all(abs(kernel.numbers.get(name, _TOO_LARGE)) < _TOO_LARGE for name in wide) and all(
        "i64" not in one.rest.partition(" : ")[2] if one.name in _READ else one.name in _ADDED for one in made
    )


def _share(kernel: Kernel, divisions: Sequence[Operation]) -> float:
    """Of the lines of the divisions in the instructions of the loops' machine code; a usual share without any."""
    lines = {(at.file, at.line) for op in divisions if (at := frame_of(op)) is not None}
    loops = [one for one in kernel.code.instructions if kernel.code.depth(one)] if kernel.code is not None else []
    if not lines or not loops:
        return 1 - 1 / 1.3
    share = sum(one.frame is not None and (one.frame.file, one.frame.line) in lines for one in loops) / len(loops)
    return min(share, 2 / 3)  # a loop on one line is not all division


@dataclass(frozen=True)
class _Cost:
    """Cycles of an SM that a CTA takes: of its divisions, of its other instructions, and of memory for its bytes.

    An iteration that loads no tile, but the next number of a row, has none of memory.
    """

    divisions: float
    others: float
    memory: float

    @property
    def gain(self) -> float:
        """Without the divisions."""
        return max(self.divisions + self.others, self.memory) / max(self.others, self.memory, 1.0)

    @property
    def most(self) -> float:
        """If memory alone is left: a scalar index spares each thread its gathers too."""
        return max(self.divisions + self.others, self.memory) / self.memory if self.memory else math.inf


def _of_elements(kernel: Kernel, waiting: Collection[int]) -> Iterator[Finding]:
    """Of a kernel without loops: its other divisions together, if they do not hide behind its loads and stores.

    Of quotient and remainder of the same numbers one is computed. A launch of fewer CTAs than SMs waits for latencies.
    """
    operations = distinct(op for op in kernel.operations if op.line not in waiting and is_of_elements(kernel, op))
    cost = _cost(kernel, operations) if operations and not _is_small(kernel) else None
    if cost is not None:
        yield from _of_cost(kernel, operations, cost, "a CTA")


def _of_data(kernel: Kernel, loop: Operation, waiting: Collection[int]) -> Iterator[Finding]:
    """Of an iteration: its divisions of data, if they do not hide behind its bytes and MMAs.

    waiting: lines of divisions that can wait, and are no part of it.
    """
    iteration = [op for op in own(loop) if op.line not in waiting]
    operations = distinct(op for op in iteration if is_of_elements(kernel, op) and is_data(kernel, op))
    others = [op for op in iteration if op.name not in DIVISIONS]
    least = bytes_or_mma_cycles(kernel, others) / COPIED_SHARE
    if not operations or _is_small(kernel) or (not least and _moves_tiles(others)):
        return
    took = division_cycles(kernel, operations)
    yield from _of_cost(kernel, operations, _Cost(took, arithmetic_cycles(kernel, others), least), "an iteration")


def _moves_tiles(operations: Sequence[Operation]) -> bool:
    """Whether any of these loads, stores or updates a tile. A scalar, such as the next number of a row, is none."""
    return any(op.name in (*LOADS, *STORES, *ATOMICS, *_BY_TMA) and tensor_types(op.rest) for op in operations)


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
        f"{cost.others:.0f} cycles, and "
        + (f"memory takes {cost.memory:.0f} cycles to move the bytes" if cost.memory else "it moves no tile"),
        advice(kernel, operations),
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
    """None of a kernel whose bytes are not known.

    Of indices that are rounded floats, as of a scaled image, a tile of the tensor counts once: its loads are of
    neighbours.
    """
    moved = sum(_moved_bytes(kernel, access) for access in kernel.accesses)
    by_tma = (tensor_types(op.rest) for op in kernel.named(*_BY_TMA))
    moved += sum(max((tensor.size * tensor.bytes for tensor in types), default=0) for types in by_tma)
    known = {access.operation.line for access in kernel.accesses}
    others = [op for op in kernel.named("tt.load", *STORES) if tensor_types(op.rest) and op.line not in known]
    if not moved or any(source.name in LOADS for op in others for source in kernel.values.sources(op, 0)):
        return None
    moved += sum({(op.name, kernel.tensors_of(op)): largest_bytes(op) for op in others}.values())
    times = [(op, numbers_of_thread(kernel, op)) for op in divisions]
    computing = arithmetic_cycles(kernel, kernel.operations)
    if kernel.code is not None:
        code = kernel.code.instructions
        end = max((place for place, one in enumerate(code, 1) if one.opcode == "EXIT"), default=len(code))
        written = sum(count * (_WRITTEN if instructions_of(kernel, op) > SHORT else SHORT) for op, count in times)
        computing = max(end - written, 0) * kernel.total_warps / kernel.arch.sub_partitions
    return _Cost(
        division_cycles(kernel, divisions), computing, moved / (COPIED_SHARE * kernel.arch.memory_bytes_per_cycle)
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


def advice(kernel: Kernel, divisions: Sequence[Operation]) -> str:
    """How divisions by numbers known at run time become fewer, or cheaper.

    An index that is loaded has no axis of the grid, and an index of many gigabytes has 64 bits.
    """
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
    ways += [_of_mersenne(bits) for bits in sorted({_mersenne_bits(kernel, op) for op in divisions} - {0})]
    if any(op.name.startswith("arith.rem") and is_data(kernel, op) for op in divisions):
        ways.append("make the size n a power of two and write x & (n - 1)")
        ways.append("take tl.umulhi(x, n) of a 32-bit hash x, which spreads it over 0 to n - 1 too")
    return "; or ".join(ways) or "compute the quotients before the launch"


def _mersenne_bits(kernel: Kernel, op: Operation) -> int:
    """The k of a remainder whose divisor is 2^k - 1 at the launch; else 0."""
    divisor = kernel.launched_values.operand(op, 1)
    if not op.name.startswith("arith.rem") or divisor is None or not divisor.arguments <= kernel.numbers.keys():
        return 0
    number = int(divisor.numbers.flat[0])
    return number.bit_length() if number > 1 and number & (number + 1) == 0 else 0


def _of_mersenne(bits: int) -> str:
    """A remainder by 2^bits - 1 without a division: 2^bits leaves 1, so the upper part is added to the lower one."""
    return (
        f"as the divisor p is 2^{bits} - 1, write x = (x & p) + (x >> {bits}) twice and tl.where(x >= p, x - p, x) in "
        f"place of x % p, for x from 0 to 2^{2 * bits} - 1"
    )


RULE = Rule("loop-division", "Division by a number known at run time", check)
