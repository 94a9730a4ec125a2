"""Loops in which a number that each iteration loads decides whether it does anything, and how many iterations do."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from kperf.diagnose.analyses.loops import always
from kperf.diagnose.analyses.occupancy import held_ctas
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.masks import conditions_of
from kperf.diagnose.reading.operations import (
    ASYNC_COPIES,
    ATOMICS,
    LOADS,
    MMAS,
    STORES,
    TMA_LOADS,
    TMA_STORES,
    loops_around,
    mask_place,
)
from kperf.diagnose.thresholds import IN_LOOP, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation

_OF_TILES = (*LOADS, *STORES, *ATOMICS)
_TMA = (*TMA_LOADS, *TMA_STORES, *ASYNC_COPIES)
_WAIT_CYCLES = 500
"""Of an iteration that loads a number from L1 or L2, compares it and does nothing, in each of an SM's CTAs: 256 of them
for each of 7 slices of 4096 tokens took 1.0 ms with 16 CTAs an SM (H200)."""
_UNKNOWN = (1.1, 3.0)
"""Estimate and the most of it, where the launch does not say how many iterations do something."""


@dataclass(frozen=True)
class Rarely:
    """A loop that does nothing in most iterations, for all that a launch says.

    number: the load that decides. iterations: None if the launch does not say them. working: of these, how many do
    something in the mean, and `tensor` whose elements say so; None if nothing does. is_sure: whether those elements
    are stored, each once, or else loaded. is_repeated: whether a loop around it asks for the same numbers again.
    """

    number: Operation
    iterations: int | None
    working: float | None
    tensor: str
    is_sure: bool
    is_repeated: bool
    gain: float
    most: float


def rarely_working(kernel: Kernel, loop: Operation) -> Rarely | None:
    """None where an iteration works without asking a number, or where all do something."""
    if kernel.runs_once(loop):
        return None
    numbers, work = _decided(kernel, loop)
    if not numbers:
        return None
    iterations, (working, tensor, is_sure) = kernel.iterations(loop), _working(kernel, loop, work)
    if iterations is not None and working is not None and working >= iterations:
        return None
    around = loops_around(loop)
    moved = _cycles(kernel, work, [loop, *around])
    beside = _cycles(kernel, [op for op in kernel.operations if loops_around(op) == around], around)
    waiting = _WAIT_CYCLES / held_ctas(kernel)

    def gain(some: float) -> float:
        everything = (iterations or 0) * waiting + some * moved + beside
        return everything / (some * (waiting + moved) + beside)

    if working is None or iterations is None:
        if any(op.name in MMAS for op in work) or (iterations is not None and gain(1) < SEVERE_GAIN):
            return None
        estimate = _UNKNOWN
        working = None
    else:
        estimate = gain(working), iterations / working
    address = kernel.values.operand(numbers[0], 0)
    is_repeated = bool(around) and address is not None and not {one.line for one in around} & address.iterations
    return Rarely(numbers[0], iterations, working, tensor, is_sure, is_repeated, *estimate)


def _decided(kernel: Kernel, loop: Operation) -> tuple[list[Operation], list[Operation]]:
    """Loads of a number by which an iteration works or not, and that work: all that loads or stores tiles.

    It stands in one way of a branch, or its masks are false everywhere where the number says so.
    """
    body = list(always(loop))
    tiles = [op for op in body if _moves_tiles(op)]
    ways = [
        (op, region)
        for op in body
        if op.name == "scf.if"
        for region in op.regions
        if any(map(_moves_tiles, region.walk()))
    ]
    if len(ways) == 1 and not tiles and not any(map(_computes_floats, body)):
        branch, region = ways[0]
        return _numbers(kernel, loop, kernel.values.sources(branch, 0)), list(region.walk())
    if ways or not tiles or any(op.name in _TMA for op in tiles):
        return [], []
    of_masks = [_in_mask(kernel, loop, op) for op in tiles]
    return [one for one in of_masks[0] if all(one in others for others in of_masks)], tiles


def _in_mask(kernel: Kernel, loop: Operation, op: Operation) -> list[Operation]:
    """The numbers without which a mask is false in the whole tile."""
    made = [
        kernel.values.sources(one, place) for one, _ in conditions_of(kernel, op, mask_place(op)) for place in (0, 1)
    ]
    whole = [sources for sources in made if not any(one.name == "tt.make_range" for one in sources)]
    return [one for sources in whole for one in _numbers(kernel, loop, sources)]


def _numbers(kernel: Kernel, loop: Operation, sources: Sequence[Operation]) -> list[Operation]:
    """Of these the loads of one number, of another one in each iteration."""
    loads = [op for op in sources if op.name in LOADS and not tensor_types(op.rest) and loop in loops_around(op)[:1]]
    addresses = [(op, kernel.values.operand(op, 0)) for op in loads]
    return [op for op, address in addresses if address is not None and loop.line in address.iterations]


def _computes_floats(op: Operation) -> bool:
    """Whether it computes with a tile of data, as in each iteration beside a branch; masks and addresses are none."""
    return bool(re.match(r"arith\.\w+f$|math\.", op.name)) and bool(tensor_types(op.rest))


def _moves_tiles(op: Operation) -> bool:
    return op.name in _TMA or (op.name in _OF_TILES and bool(tensor_types(op.rest)))


def _working(kernel: Kernel, loop: Operation, work: Sequence[Operation]) -> tuple[float | None, str, bool]:
    """Iterations that do something in the mean, the tensor whose length says it, and whether that is sure.

    They store each element of a tensor at most once, at rows that are data. Of rows that they load this is so if there
    is a whole number of them for each time that the loop is run.
    """
    runs = _runs(kernel, loop)
    found = []
    for access in (one for one in kernel.accesses if one.operation in work):
        each = kernel.kept_at_launch(access) * _times(kernel, access.operation, loop)
        length = _length(kernel, access)
        if runs and each and length and access.value.loaded:
            is_sure, some = access.operation.name in STORES, length / (each * runs)
            if is_sure or (some >= 1 and some == int(some)):
                found.append((some, ", ".join(kernel.tensors_of(access.operation)), is_sure))
    return min(found, default=(None, "", False))


def _runs(kernel: Kernel, loop: Operation) -> float:
    """How often a launch runs a loop: by the loops around it, or by a tensor that it sweeps beside it; 0 if unknown."""
    counts = [kernel.iterations(one) for one in loops_around(loop)]
    if kernel.grid is not None and None not in counts:
        return math.prod(kernel.grid) * math.prod(one or 0 for one in counts)
    swept = [
        length / kernel.kept_at_launch(access)
        for access in kernel.accesses
        if loops_around(access.operation) == loops_around(loop) and not access.value.loaded
        if access.value.program and (length := _length(kernel, access))
    ]
    return max(swept, default=0)


def _length(kernel: Kernel, access: Access) -> int:
    names = kernel.tensors_of(access.operation)
    return sum(kernel.lengths.get(name, 0) for name in names) if len(names) == 1 else 0


def _times(kernel: Kernel, op: Operation, loop: Operation) -> int:
    """How often an iteration of a loop does an operation; 0 if the launch does not say it."""
    around = loops_around(op)
    return math.prod(kernel.iterations(one) or 0 for one in around[: around.index(loop)])


def _cycles(kernel: Kernel, operations: Sequence[Operation], outside: Sequence[Operation]) -> float:
    """Of device memory for what these load and store, in an iteration of the loops `outside`."""
    moved = 0
    for access in (one for one in kernel.accesses if one.operation in operations):
        inner = [loop for loop in loops_around(access.operation) if loop not in outside]
        counts = [kernel.iterations(loop) for loop in inner]
        moved += access.asked_bytes * math.prod(IN_LOOP if count is None else count for count in counts)
    return moved / kernel.arch.memory_bytes_per_cycle
