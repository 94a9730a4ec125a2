"""How many bytes a launch moves, and what moving fewer of them gives."""

import math
from collections.abc import Iterable, Sequence

import numpy as np

from kperf.diagnose.analyses.loops import largest_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, mma_cycles
from kperf.diagnose.reading.cta_values import CtaValues, cta_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, STORES, TMA_LOADS, TMA_STORES, loops_around
from kperf.diagnose.thresholds import IN_LOOP, MMA_SHARE
from kperf.ir.layouts import element_bytes
from kperf.ir.loops import BOUNDS
from kperf.ir.ttgir import Operation


def gain_of_bytes(kernels: Sequence[Kernel], moved: float, saved: float) -> float:
    """Of one kernel that saves so many of the bytes that all kernels move, and computes what they compute.

    As if nothing moved while an SM computes. Of jpeg_dct this gives 1.9, where 2.0 were measured (H200); bytes alone
    give 3.7.
    """
    rate, computed = kernels[0].arch.memory_bytes_per_cycle, sum(map(_computed, kernels))
    return (moved / rate + computed) / ((moved - saved) / rate + computed)


def launch_bytes(kernel: Kernel) -> float:
    """All bytes that a launch moves."""
    by_tma = sum(asked_bytes(kernel, op) for op in kernel.named(*TMA_LOADS, *TMA_STORES))
    return by_tma + sum(sum(tensors_bytes(kernel, names).values()) for names in (LOADS, (*STORES, *ATOMICS)))


def tensors_bytes(kernel: Kernel, names: Iterable[str]) -> dict[str, float]:
    """Bytes of each tensor that a launch's loads, or stores, move: L2 keeps what CTAs share."""
    found: dict[str, float] = {}
    for op in kernel.named(*names):
        for tensor in kernel.tensors_of(op):
            found[tensor] = min(found.get(tensor, 0.0) + asked_bytes(kernel, op), float(tensor_bytes(kernel, tensor)))
    return found


def asked_bytes(kernel: Kernel, op: Operation) -> float:
    """What all CTAs of a launch ask for by a load or store, the same bytes of a tile once."""
    value, size = kernel.values.operand(op, 0), largest_bytes(op)
    if value is not None and value.numbers.size:
        distinct = np.unique(value.numbers[kernel.kept(op, value.numbers.shape)])
        size = size * len(distinct) // value.numbers.size
    return size * _times(kernel, [op])[op.line] * math.prod(kernel.grid or ())


def tensor_bytes(kernel: Kernel, tensor: str) -> int:
    """Bytes of a tensor of the launch."""
    return kernel.lengths.get(tensor, 0) * element_bytes(kernel.parameters[tensor].type)


def _times(kernel: Kernel, operations: Iterable[Operation]) -> dict[int, float]:
    """How often the middle CTA of a launch does each operation, by its line; in each loop that is not known IN_LOOP."""
    middle = CtaValues(kernel, cta_of(kernel, math.prod(kernel.grid or ()) // 2))
    counts: dict[int, float] = {}
    times = {}
    for op in operations:
        for loop in loops_around(op):
            if loop.line not in counts:
                counts[loop.line] = IN_LOOP if (count := iterations_in(middle, loop)) is None else count
        times[op.line] = math.prod(counts[loop.line] for loop in loops_around(op))
    return times


def _computed(kernel: Kernel) -> float:
    """Cycles of SMs for what all CTAs of a launch compute."""
    times = _times(kernel, kernel.operations)
    cycles = sum(
        times[op.line] * (arithmetic_cycles(kernel, [op]) + mma_cycles(kernel, [op]) / MMA_SHARE)
        for op in kernel.operations
    )
    return math.prod(kernel.grid or ()) * cycles


def iterations_in(values: CtaValues, loop: Operation) -> int | None:
    """How often a loop runs in a CTA; None if not known."""
    bounds = [values.operand(loop, place) for place in BOUNDS] if loop.name == "scf.for" else []
    known = [int(one.numbers) for one in bounds if one is not None and not one.loaded]
    return len(range(*known)) if len(known) == len(BOUNDS) and known[-1] > 0 else None
