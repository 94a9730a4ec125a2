"""Loads of what the same CTA stored before, at the same addresses: registers had it."""

from collections.abc import Iterator, Sequence

import numpy as np

from kperf.arch import H200
from kperf.diagnose.analyses.loops import accesses_of
from kperf.diagnose.analyses.occupancy import ctas
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.operations import ATOMICS, LOOPS, STORES, loops_around, mask_place, own
from kperf.diagnose.thresholds import MEMORY_LATENCY_CYCLES
from kperf.ir.next_iteration import NextIteration
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value


def stored_before(written: Kernel) -> Iterator[tuple[Operation, Operation]]:
    """Loads of tiles, each with the last store before it that has all its addresses, in the same order.

    written: a kernel as it is written, in TTIR, whose loads stand in the iteration that uses them. The store may stand
    in an earlier loop that goes over the same addresses. No other store or atomic to these addresses is between, also
    of an iteration before.
    """
    writes = list(written.named(*STORES, *ATOMICS))
    for load in written.named("tt.load"):
        earlier = [op for op in writes if op.line < load.line]
        for place in reversed(range(len(earlier))):
            if earlier[place].name in STORES and _is_same(written, earlier[place], load):
                later = [op for op in writes if op.line > load.line]
                if not any(_changes_next(written, earlier[place], op, load) for op in later):
                    yield load, earlier[place]
                break
            if _may_change(written, earlier[place], load):
                break


def stored_by_iteration(kernel: Kernel, loop: Operation, load: Access) -> list[Access]:
    """The stores of a loop to the addresses that one of its loads has, element by element."""
    stores = (access for access in accesses_of(kernel, loop) if access.operation.name in STORES)
    return [access for access in stores if np.array_equal(access.value.numbers, load.value.numbers)]


def gain_without(kernel: Kernel, written: Kernel, again: Sequence[Operation]) -> float:
    """Speed-up without these loads of what was stored: of the bytes of an SM's CTAs, or of the waits of one of them.

    The loads of an iteration wait together, and of those outside of loops each one that follows a store.
    """
    lines = {frame_of(op) for op in again}
    moved = {True: 0.0, False: 0.0}
    for access in kernel.accesses:
        size = access.asked_bytes / max(access.tile_sector_use, 1e-9) * kernel.times(access.operation)
        moved[frame_of(access.operation) in lines] += size
    resident = ctas(kernel) if kernel.resources is not None else 1
    rest = resident * moved[False] / kernel.arch.memory_bytes_per_cycle
    from_l2 = resident * moved[True] / H200.l2_bytes_per_cycle
    waits = sum(map(written.times, again))
    others = 1
    for loop in written.named(*LOOPS):
        loads = [op for op in own(loop) if op.name == "tt.load"]
        if loads and any(op not in again for op in loads):
            waits -= sum(written.times(op) for op in again if op in loads)
            others += written.times(loads[0])
    after = max(rest, others * MEMORY_LATENCY_CYCLES)
    return max(rest + from_l2, (others + waits) * MEMORY_LATENCY_CYCLES) / after


def _is_same(written: Kernel, store: Operation, load: Operation) -> bool:
    """Whether a load has the addresses of a store that runs before it, element by element, in each iteration."""
    first, then = loops_around(store), loops_around(load)
    if first == then:
        is_before = _runs_before(store, load)
    elif first and then and first[1:] == then[1:] and store.parent is first[0].regions[-1]:
        is_before = _runs_before(first[0], then[0])
    else:
        return False
    values = [(written.values, written.values)]
    values += [
        (NextIteration(written.values, one), NextIteration(written.values, other))
        for one, other in zip(first, then, strict=True)
    ]
    return (
        is_before
        and _is_let_through(written, store, load)
        and all(_has_equal(one.operand(store, 0), other.operand(load, 0)) for one, other in values)
    )


def _has_equal(one: Value | None, other: Value | None) -> bool:
    if one is None or other is None or one.numbers.size == 1:
        return False
    return np.array_equal(one.numbers, other.numbers)


def _is_let_through(written: Kernel, store: Operation, load: Operation) -> bool:
    """Whether the mask of a store lets through what the mask of a load does."""
    masks = [op.operands[mask_place(op) :][:1] for op in (store, load)]
    if not masks[0] or masks[0] == masks[1]:
        return True
    stored, loaded = (written.values.operand(op, mask_place(op)) for op in (store, load))
    if stored is None or loaded is None or stored.loaded or loaded.loaded or stored.arguments != loaded.arguments:
        return False
    return np.array_equal(stored.numbers, loaded.numbers)


def _may_change(written: Kernel, write: Operation, load: Operation) -> bool:
    """Whether a store or an atomic may write what is loaded: by its addresses, or by another name of the tensor."""
    tensors, of_load = written.tensors_of(write), written.tensors_of(load)
    if not tensors or tensors & (written.memory_of(load) - of_load):
        return True
    to, at = written.values.operand(write, 0), written.values.operand(load, 0)
    return bool(tensors & of_load) and (to is None or at is None or np.intersect1d(to.numbers, at.numbers).size > 0)


def _changes_next(written: Kernel, store: Operation, write: Operation, load: Operation) -> bool:
    """Whether a write behind a load may change what its next iteration loads, after the store, which runs no more.

    To write to the addresses of the iteration itself changes nothing that a later one loads.
    """
    again = [loop for loop in loops_around(load) if loop not in loops_around(store)]
    if not any(loop in loops_around(write) for loop in again):
        return False
    tensors = written.tensors_of(write)
    if tensors and not tensors & written.memory_of(load):
        return False
    to, at = written.values.operand(write, 0), written.values.operand(load, 0)
    same = to is not None and at is not None and np.array_equal(to.numbers, at.numbers)
    return not (same and loops_around(write) == loops_around(load))


def _runs_before(first: Operation, then: Operation) -> bool:
    """Whether an operation runs each time before another one: no branch leads past it."""
    around: Operation | None = then
    while around is not None and around.parent is not first.parent:
        around = around.parent.owner if around.parent is not None else None
    if around is None or first.parent is None:
        return False
    lines = [[op.line for op in block.operations] for block in first.parent.blocks]
    return any(first.line in block and around.line in block for block in lines)
