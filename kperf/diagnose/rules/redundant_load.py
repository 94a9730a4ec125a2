"""The same addresses, loaded again."""

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass

import numpy as np

from kperf.arch import (
    H200,
    H200_FIRST_L2_LATENCY,
    H200_L1_BYTES_PER_CYCLE,
    H200_L1_LATENCY,
    H200_L2_LINE_BYTES_PER_CYCLE,
)
from kperf.console import agreeing
from kperf.diagnose.analyses.atomics import reads_atomics
from kperf.diagnose.analyses.loops import read_by_wgmma
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, arithmetic_of_cta, bytes_or_mma_cycles
from kperf.diagnose.analyses.repetitions import of_repetitions, repetitions
from kperf.diagnose.analyses.stored import gain_without, stored_before
from kperf.diagnose.analyses.sweeps import Swept, fits_l1, swept_by, table_of
from kperf.diagnose.analyses.warps import warps_of_row
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.operations import (
    ATOMICS,
    LOADS,
    MMAS,
    STORES,
    TMA_STORES,
    are_alternatives,
    inside,
    is_of_inner_loop,
    loops_around,
    own,
)
from kperf.diagnose.reading.options import tile_for, with_option
from kperf.diagnose.reading.pointers import name_of, names_of
from kperf.diagnose.reading.strides import next_cta
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import ELEMENTS_OF_THREAD, LINE_BYTES, MEDIUM_GAIN, SECTOR_BYTES, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_SMALL = 256
"""Elements: a few numbers come from the cache."""
_TIMES = 8
"""Of one address in a tile."""
_MOST = 1.5
_CACHED = 1.3
"""Of a load whose bytes a cache gives again."""
_CARRIED = 3.0
"""Of an iteration that waits for its own bytes and moves few others."""
_PART_OF_REGISTERS = 0.5
"""Of an SM's, for the elements that a CTA keeps: what is computed of them takes the others. With 32 warps a softmax and
a layer norm of 32768 elements in float32 spill nothing, nor a gradient that keeps two rows of 16384; of twice as many
elements they spill."""
_WIDENED = ("arith.extf", "arith.extsi", "arith.extui", "arith.sitofp", "arith.uitofp")
_ONE_PASS = "compute all in one pass (an online algorithm)"
_KEPT = "hold the whole row in registers, and load it once"
_BACKWARDS = "let this loop run from the end to the beginning: the L2 cache has what the kernel loaded last"
_PAST_L1 = re.compile(r"cacheModifier = (cg|cv)|isVolatile = true")
_AGAIN = 2
"""Bytes that loads past L1 ask for, for each byte that is another one."""
_CROWDED = 2
"""How many times as long L2 may take where all SMs load from it at once. Not measured: it only widens the interval."""
_WIDER = H200_L1_BYTES_PER_CYCLE / H200.l2_bytes_per_cycle
_SOONER = H200_FIRST_L2_LATENCY / H200_L1_LATENCY
"""What L1 gives where bytes decide, and where waiting does. Their geometric mean is 3.9: of the 49 taps of a
convolution 3.55 x were measured (H100)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of loads whose addresses do not change in their loop, of two loads of the same addresses, and past L1."""
    loads = [access for access in kernel.accesses if access.operation.name in LOADS and access.tensor.size >= _SMALL]
    for access in loads:
        yield from _repeated(kernel, access)
        loops = loops_around(access.operation)
        if loops and loops[0].name == "scf.for" and "isVolatile = true" not in access.operation.rest:
            if loops[0].line in access.value.iterations or access.value.loaded or kernel.runs_once(loops[0]):
                continue
            if is_of_inner_loop(access.operation, loops[0]):
                continue  # the inner loop sweeps the tensor, and its pipeline begins here
            if _stores(loops[0], access, kernel):
                yield from _stored_again(kernel, loops[0], access)
                continue
            gain = _gain(kernel, loops[0], access)
            yield kernel.finding(
                RULE.id,
                access.operation,
                "medium" if gain >= MEDIUM_GAIN else "low",
                f"each iteration loads the same {access.tile_bytes} bytes of {name_of(access.value, kernel)} again",
                "load these bytes once before the loop",
                {"bytes": access.tile_bytes},
                estimate=(gain, 1.0, _MOST),
            )
    yield from _past_l1(kernel)
    of_stored = list(_stored_before(kernel))
    yield from of_stored
    stored = {(one.source.file, one.source.line) for one in of_stored}
    again = {}
    for place, later in enumerate(loads):
        earlier = next((one for one in loads[:place] if _same(one, later)), None)
        if earlier is not None and not _is_apart_from_wgmma(kernel, earlier, later) and _place(later) not in stored:
            again[later.operation.line] = earlier, later
    for earlier, later in again.values():
        before, names = frame_of(earlier.operation), names_of(later.value, kernel)
        row = _row_of(kernel, later, [one for _, one in again.values()])
        no_room = ""
        if row is not None and not row.fits and not row.is_reduced:
            no_room = f", and a CTA's part of it, {row.elements} elements, is too long for registers"
        gain = _gain_of_one_less(kernel, later)
        yield kernel.finding(
            RULE.id,
            later.operation,
            "low" if no_room or gain < MEDIUM_GAIN else "medium",
            f"{name_of(later.value, kernel)} {agreeing(len(names), 'is', 'are')} read at the same addresses as on line "
            f"{before.line if before else 0}{no_room}",
            _advice(kernel, later, row),
            {"bytes": later.tile_bytes, "first_line": before.line if before else 0},
            confidence="medium",
            estimate=(1.05, 1.0, 1.5) if no_room else (gain, 1.0, min(gain**3, 2.0)),
        )


def _place(access: Access) -> tuple[str, int]:
    frame = frame_of(access.operation)
    return (frame.file, frame.line) if frame is not None else ("", 0)


def _stored_before(kernel: Kernel) -> Iterator[Finding]:
    """Of tiles that the CTA stored before it loads them, where no other CTA may have changed them."""
    written = kernel.as_written
    if written is None or _may_wait(kernel):
        return
    again = [(load, store) for load, store in stored_before(written) if not _PAST_L1.search(load.rest)]
    likely = min(gain_without(kernel, written, [load for load, _ in again]), _CARRIED)
    for load, store in again:
        before = frame_of(store)
        advice, fits = "use the tensor that was stored, in the type of its pointer, and leave out this load", True
        if loops_around(store) != loops_around(load):
            advice, fits = _row_of_stored(kernel, load)
        gain = likely if fits else 1.05
        yield kernel.finding(
            RULE.id,
            load,
            "medium" if gain >= MEDIUM_GAIN else "low",
            f"{', '.join(sorted(written.tensors_of(load)))} is read at the addresses at which line "
            f"{before.line if before else 0} stored it: this CTA had the values in registers, and waits for them",
            advice,
            {"stored_line": before.line if before else 0},
            confidence="medium",
            estimate=(gain, 1.0, max(1.5 * gain, _CACHED)),
        )


def _row_of_stored(kernel: Kernel, load: Operation) -> tuple[str, bool]:
    """How to keep what an earlier loop stores, and whether registers hold it; they are taken to, if nothing says it."""
    frame = frame_of(load)
    access = next((one for one in kernel.accesses if frame_of(one.operation) == frame), None)
    row = _row_of(kernel, access, [access]) if access is not None else None
    if row is not None and not row.fits:
        return _BACKWARDS, False
    tile = f"one tile of {row.tile} elements" if row is not None and row.elements else "one tile for the whole row"
    return (
        f"keep what the earlier loop stores in registers ({tile}, or a tile for each of a few iterations), and leave "
        "out this load",
        True,
    )


def _gain_of_one_less(kernel: Kernel, again: Access) -> float:
    """Without a load's bytes among all that the CTA's loads ask for; at most 1.3, as caches give them again."""
    asked = {
        access.operation.line: access.tile_bytes * kernel.times(access.operation)
        for access in kernel.accesses
        if access.operation.name in LOADS
    }
    rest = sum(asked.values()) - asked[again.operation.line]
    return min(sum(asked.values()) / rest, _CACHED) if rest > 0 else _CACHED


def _past_l1(kernel: Kernel) -> Iterator[Finding]:
    """Of loads that pass by L1 and whose bytes the CTA loads again, as the taps of a stencil, or gathers from a table.

    A tensor that the kernel writes may need them, and so may all tensors of a kernel that waits for what others write:
    L1 does not see it.
    """
    of_tensor: dict[frozenset[str], list[Swept]] = defaultdict(list)
    for access in kernel.accesses:
        tensors = kernel.memory_of(access.operation)
        if not tensors or not _passes_l1(access.operation) or _writes(kernel, tensors):
            continue
        if (swept := table_of(kernel, access) or swept_by(kernel, access)) is not None:
            of_tensor[tensors].append(swept)
    if of_tensor and not _may_wait(kernel):
        for loads in of_tensor.values():
            yield from _again_from_l2(kernel, loads)


def _passes_l1(op: Operation) -> bool:
    """By a cache modifier, or as it is volatile. The copies that the compiler makes of other loads always pass L1."""
    return op.name == "tt.load" and _PAST_L1.search(op.rest) is not None


def _may_wait(kernel: Kernel) -> bool:
    """Whether a CTA may learn while it runs that others wrote: by an atomic, or by a load that a branch hangs on."""
    of_branches = (op for branch in kernel.named("scf.if") for op in kernel.values.sources(branch, 0))
    of_loops = (op for loop in kernel.named("scf.while") for op in inside(loop))
    return reads_atomics(kernel) or any(_passes_l1(op) for op in (*of_branches, *of_loops))


def _again_from_l2(kernel: Kernel, loads: Sequence[Swept]) -> Iterator[Finding]:
    """Of one tensor's loads past L1, if L1 could keep what they load."""
    first = loads[0].access
    addresses = np.unique(np.concatenate([one.addresses for one in loads]))
    size = len(addresses) * first.tensor.bytes
    again = sum(one.access.used_bytes * one.times for one in loads) / size
    sectors = len(np.unique(addresses // SECTOR_BYTES))
    of_sm = any(one.of_sm for one in loads)
    if again < _AGAIN or not fits_l1(kernel, sectors * SECTOR_BYTES, of_sm=of_sm):
        return
    likely, most = _gain_of_l1(kernel, loads, sectors)
    if likely < MEDIUM_GAIN:
        return
    modifier = _PAST_L1.findall(first.operation.rest)[0]
    passes = f"the cache modifier .{modifier} passes" if modifier else "volatile loads pass"
    option = f'cache_modifier=".{modifier}"' if modifier else "volatile=True"
    name = ", ".join(sorted(kernel.tensors_of(first.operation)))
    others = lines_of((one.access.operation for one in loads), first.operation)
    yield kernel.finding(
        RULE.id,
        first.operation,
        "high" if likely >= SEVERE_GAIN else "medium",
        f"{'an SM' if of_sm else 'a CTA'} loads each byte of {name} some {again:.0f} times"
        + (f" (here and on {others})" if others else "")
        + f", and each time from L2: {passes} by the L1 cache",
        f"leave out {option}, so that L1 keeps the {size} bytes: a kernel reads what was written before its launch",
        {"times": again, "bytes": size},
        confidence="medium",
        estimate=(likely, 1.0, most),
    )


def _gain_of_l1(kernel: Kernel, loads: Sequence[Swept], sectors: int) -> tuple[float, float]:
    """The likely and the most gain of cycles of an SM for a CTA's loads past L1, where nothing else takes as long.

    From L2 come each request's sectors, and later each sector once. Memory brings each sector once as it is.
    """
    requests = sum(_sectors(one, sectors) * one.times for one in loads)
    past = sum(_sectors(one, sectors) * SECTOR_BYTES * kernel.times(one.access.operation) for one in loads)
    once = past * sectors / requests
    lines = {one.access.operation.line for one in loads}
    others = [access for access in kernel.accesses if access.operation.line not in lines]
    moved = once + sum(access.asked_bytes * kernel.times(access.operation) for access in others)
    computed = arithmetic_of_cta(kernel, kernel.operations)
    multiplied = sum(bytes_or_mma_cycles(kernel, [op]) * kernel.times(op) for op in kernel.named(*MMAS))
    least = max(moved / kernel.arch.memory_bytes_per_cycle, computed, multiplied)
    rate = H200.l2_bytes_per_cycle
    of_lines = math.ceil(sectors * SECTOR_BYTES / LINE_BYTES) * H200_L2_LINE_BYTES_PER_CYCLE / H200.sms
    shared = of_lines if any(one.of_sm for one in loads) else math.inf  # all SMs load from the same lines

    def gain(crowd: float, faster: float) -> float:
        """crowd: how many times as long L2 takes. faster: L1 than an L2 from whose lines few load."""
        later = max(past / faster, once) * crowd / rate
        return max(past * crowd / min(rate, shared), least) / max(later, least)

    return gain(1, math.sqrt(_WIDER * _SOONER)), gain(_CROWDED, _SOONER)


def _sectors(load: Swept, sectors: int) -> float:
    """That a load's requests touch, of so many that it may touch: an index that is data is one of a table by chance."""
    access = load.access
    if not load.of_sm:
        return access.sectors
    of_request = access.used_bytes / access.tensor.bytes / access.requests
    return float(access.requests * sectors * (1 - (1 - 1 / sectors) ** of_request))


def _writes(kernel: Kernel, tensors: frozenset[str]) -> bool:
    """Whether the kernel writes to one of these tensors, or to one that may be any: by TMA, or at a pointer read."""
    if any(True for _ in kernel.named(*TMA_STORES)):
        return True
    return any(not (to := kernel.tensors_of(op)) or to & tensors for op in kernel.named(*STORES, *ATOMICS))


def _repeated(kernel: Kernel, access: Access) -> Iterator[Finding]:
    """A tile of a loop that has each of its addresses many times: a factor of a group of rows, say.

    Without the repetitions an iteration moves less from the cache, and its stages take less shared memory; what it
    computes stays. So the likely gain is the root of the cycles with the repetitions over those without: it is 1.2 and
    1.4 for two kernels with 4-bit weights of which 1.3 and 0.98 were measured (H100).
    """
    addresses, times = repetitions(access)
    loops = loops_around(access.operation)
    if not loops or times < _TIMES or access.value.loaded or access.value.scattered:
        return
    inside = {op.line for op in own(loops[0])}
    of_loop = [one for one in kernel.accesses if one.operation.line in inside and one.operation.name in LOADS]
    loaded = sum(one.tensor.size * one.tensor.bytes for one in of_loop)
    saved = sum(
        (one.tensor.size - len(np.unique(one.value.numbers))) * one.tensor.bytes
        for one in of_loop
        if _pointers(kernel, one) == _pointers(kernel, access)
    )
    computed = arithmetic_cycles(kernel, own(loops[0])) * H200.l2_bytes_per_cycle
    gain = (computed + loaded) / max(computed + loaded - saved, 1)
    if gain < MEDIUM_GAIN:
        return
    why, advice = of_repetitions(access, times)
    yield kernel.finding(
        RULE.id,
        access.operation,
        "medium",
        f"each iteration loads {addresses} {agreeing(addresses, 'number', 'numbers')} of "
        f"{name_of(access.value, kernel)} {times} times{agreeing(addresses, '', ' each')}: {why}",
        advice,
        {"addresses": addresses, "elements": access.tensor.size},
        confidence="medium",
        estimate=(gain**0.5, 0.9, gain),
    )


@dataclass(frozen=True)
class _Row:
    """What a CTA loads twice in two loops: `elements` of it, None where that is not known.

    each: registers of 32 bits for an element, with those of what else the second loop loads again, and of the elements
    that share its sector, where these are of other CTAs now (a column of a matrix). most: registers that a CTA has.
    stored: elements of the result, where these are fewer; None where they are not, or not known.
    """

    elements: int | None
    each: float
    most: float
    stored: int | None

    @property
    def tile(self) -> int:
        """The elements of one tile that holds it, whose length is a power of two."""
        return tile_for(self.elements or 0)

    @property
    def fits(self) -> bool:
        """Whether registers hold such a tile; True where the length of the row is not known."""
        return self.elements is None or self.tile * self.each <= self.most

    @property
    def longest(self) -> int:
        """Elements of the longest tile that registers hold."""
        return 1 << int(math.log2(self.most / self.each))

    @property
    def is_reduced(self) -> bool:
        """Whether registers hold the result, which one pass may add to from its first tile on."""
        return self.stored is not None and self.stored <= self.most


def _row_of(kernel: Kernel, access: Access, again: Sequence[Access]) -> _Row | None:
    """Of a load in a loop; `again`: all that is loaded again. None without a loop, or with one of one iteration."""
    loops = loops_around(access.operation)
    if not loops or kernel.runs_once(loops[0]):
        return None
    together = [one for one in again if loops_around(one.operation)[:1] == [loops[0]]]
    elements, size = _elements_of_row(kernel, access), access.tensor.size
    stores = [one for one in kernel.accesses if one.operation.name in STORES and one.operation in list(own(loops[0]))]
    stored = 0 if not _has_stores(loops[0]) else None
    if elements and stores and all(one.tensor.size < size for one in stores):
        stored = elements // size * max(one.tensor.size for one in stores)
    return _Row(
        elements,
        sum(one.tensor.size * _kept_bytes(kernel, one) * _shared_by(kernel, one) for one in together) / 4 / size,
        kernel.arch.sm_registers * _PART_OF_REGISTERS,
        stored,
    )


def _shared_by(kernel: Kernel, access: Access) -> int:
    """How many elements of a sector one CTA has to load together, for each that it loads: those of the next CTAs."""
    _, step = next_cta(kernel, access) if not access.has_neighbours else ("", 0)
    return max(1, round(1 / access.tile_sector_use)) if 0 < step < SECTOR_BYTES else 1


def _elements_of_row(kernel: Kernel, access: Access) -> int | None:
    """That the iterations of a load's loop load together by the launch, and no more than a CTA's part of the tensor.

    A CTA that works on one part of the tensor after another, in a loop around this one, may keep each of them.
    """
    loops, tensors = loops_around(access.operation), access.value.arguments & kernel.lengths.keys()
    iterations = kernel.iterations(loops[0])
    known = [] if iterations is None else [iterations * access.tensor.size]
    if kernel.grid is not None and len(tensors) == 1 and len(loops) == 1 and access.value.program:
        known.append(kernel.lengths[next(iter(tensors))] // math.prod(kernel.grid))
    return min(known, default=None)


def _kept_bytes(kernel: Kernel, access: Access) -> int:
    """Of an element in registers: of 16 bits as it is loaded, unless the kernel widens it."""
    readers = kernel.readers.get(access.operation.line, ())
    widened = access.operation.name != "tt.load" or any(op.name in _WIDENED for op, _ in readers)
    return max(4 if widened else 2, access.tensor.bytes)


def _advice(kernel: Kernel, later: Access, row: _Row | None) -> str:
    once = "keep what the first load returns in a variable, and leave out this load"
    if not loops_around(later.operation):
        return once
    if row is None:
        return f"where one tile holds the whole row, as at this launch, leave out the loops, {once}"
    ways = []
    if row.stored == 0:
        ways.append(_ONE_PASS)
    elif row.is_reduced and not row.fits:
        ways.append(f"{_ONE_PASS} with the {row.stored} elements of the result in registers: scale what is summed")
    if row.elements is None:
        ways.append(f"where a row has no more than {row.longest} elements, let one tile {_KEPT}")
    elif row.fits:
        warps = max(kernel.num_warps, warps_of_row(kernel, row.tile))
        option = f": {with_option(kernel, f'num_warps={warps}')}" * (warps > kernel.num_warps)
        ways.append(f"let one tile of {row.tile} elements {_KEPT}{option}")
    return "; or ".join(ways) or _BACKWARDS


def _has_stores(loop: Operation) -> bool:
    return any(op.name in STORES for op in own(loop))


def _stored_again(kernel: Kernel, loop: Operation, access: Access) -> Iterator[Finding]:
    """A tile that the loop stores where it loads it: the next iteration waits for what this one had in registers."""
    inside = [one for one in kernel.accesses if one.operation in list(own(loop)) and one is not access]
    again = [one for one in inside if one.operation.name in STORES]
    again = [one for one in again if np.array_equal(one.value.numbers, access.value.numbers)]
    if not again:
        return
    cycles = sum(one.tile_bytes for one in (access, *again)) / H200.l2_bytes_per_cycle
    moved = sum(one.tile_bytes for one in inside if one not in again) / kernel.arch.memory_bytes_per_cycle
    gain = min(1 + cycles / moved, _CARRIED) if moved else _CARRIED
    yield kernel.finding(
        RULE.id,
        access.operation,
        "medium",
        f"each iteration loads the {access.tile_bytes} bytes of {name_of(access.value, kernel)} that the "
        "iteration before stored, and waits for them",
        "keep them in a variable that the loop carries, and store it once after the loop; if a thread needs another "
        "thread's element, use tl.gather or tl.sort",
        {"bytes": access.tile_bytes},
        confidence="medium",
        estimate=(gain, min(gain**0.5, 1.2), 10.0 if gain == _CARRIED else 2 * gain),
    )


def _gain(kernel: Kernel, loop: Operation, again: Access) -> float:
    """Without what L2 gives again, where L1 cannot keep it and registers can, beside what the iteration else moves.

    Of 8 KB, beside rows of 8 KB, 1.00 x were measured without (H200): L1 serves them.
    """
    inside = {op.line for op in own(loop)}
    accesses = [access for access in kernel.accesses if access.operation.line in inside]
    loaded = sum(access.tile_bytes for access in accesses if access.operation.name in LOADS)
    shared = kernel.resources.shared_bytes if kernel.resources is not None else 0
    registers = again.tile_bytes / (4 * kernel.threads)
    if loaded <= kernel.arch.sm_shared_bytes - shared or registers > ELEMENTS_OF_THREAD / 2:
        return 1.05
    moved = sum(access.tile_bytes for access in accesses) - again.tile_bytes
    cycles = again.tile_bytes / H200.l2_bytes_per_cycle
    return min(1 + cycles / max(moved / kernel.arch.memory_bytes_per_cycle, cycles), _MOST)


def _same(one: Access, other: Access) -> bool:
    """Whether both read the same addresses, in the same CTA, at different lines, whatever the iteration."""
    if are_alternatives(one.operation, other.operation):
        return False
    lines = frame_of(one.operation), frame_of(other.operation)
    if lines[0] == lines[1] or None in lines or (lines[0] and lines[1] and lines[0].line == lines[1].line):
        return False
    if one.value.loaded or other.value.loaded or one.tensor.shape != other.tensor.shape:
        return False
    loops = [loops_around(access.operation)[:1] for access in (one, other)]
    if bool(loops[0]) != bool(loops[1]) or (loops[0] and _bounds(loops[0][0]) != _bounds(loops[1][0])):
        return False
    return np.array_equal(one.value.numbers, other.value.numbers)


def _is_apart_from_wgmma(kernel: Kernel, one: Access, other: Access) -> bool:
    """Whether a wgmma reads one of the two from its buffer, and other code the other.

    One load in a pipelined loop for both would have a buffer too few: the rule buffer-race.
    """
    return read_by_wgmma(kernel, one.operation) != read_by_wgmma(kernel, other.operation)


def _bounds(loop: Operation) -> str:
    """Where a loop begins and ends, as printed."""
    return loop.rest.partition(" = ")[2].partition(" iter_args")[0].partition(" : ")[0].strip()


def _stores(loop: Operation, access: Access, kernel: Kernel) -> bool:
    """Whether the loop also writes what it reads."""
    pointers = _pointers(kernel, access)
    return any(_writes_to(kernel, op, pointers) for op in own(loop) if op.name in (*STORES, "tt.atomic_rmw"))


def _writes_to(kernel: Kernel, op: Operation, pointers: Set[str]) -> bool:
    """Whether a store or an atomic is to a tensor of these arguments."""
    value = kernel.values.operand(op, 0)
    return value is not None and bool(value.arguments & pointers)


def _pointers(kernel: Kernel, access: Access) -> set[str]:
    """The arguments that its addresses begin at."""
    return {name for name in access.value.arguments if kernel.parameters[name].is_pointer}


RULE = Rule("redundant-load", "The same addresses loaded again", check, explained_by=("window-summed-anew",))
