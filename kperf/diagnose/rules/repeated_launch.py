"""Launches one after another that each load what the last one stored: sums in parts, and iterations."""

from collections.abc import Container, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kperf.diagnose.analyses.occupancy import arithmetic_cycles, moved_bytes
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, MMAS, STORES, TMA_LOADS, TMA_STORES, mask_place
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.script.sequences import Chain, Series
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value
from kperf.trace.analyze.finding import Finding

_MOST_OVER = 1.5
"""By which factor the gain may be above its estimate: what is added up needs no load where it begins at 0."""
_LEAST_ITERATIONS = 3
"""Two launches may be a transform and its inverse, of which a test compares what it began with."""
_MOST_OF_ITERATIONS = 5.5
"""No more was measured of launches that iterate (sinkhorn, an H100). What reductions wait for is not estimated."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without loops and MMAs whose CTAs load, of what they all store, only the elements that they store.

    Then a loop in the kernel over what differs between the launches computes the same numbers.
    """
    if any(kernel.named(*LOOPS, *MMAS, *ATOMICS, *TMA_LOADS, *TMA_STORES)) or kernel.history is None:
        return
    if kernel.history.series is not None:
        yield from _of_parts(kernel, kernel.history.series)
    if kernel.history.chain is not None and kernel.history.chain.launches >= _LEAST_ITERATIONS:
        yield from _of_iterations(kernel, kernel.history.chain)


def _of_parts(kernel: Kernel, series: Series) -> Iterator[Finding]:
    """Launches that each add their part to one tensor."""
    pairs = [(loaded, stored) for loaded, stored in _pairs(kernel) if not loaded.value.arguments & series.moved]
    again = [one.operation for pair in pairs for one in pair]
    if not pairs or not _is_one_loop(kernel, series, again):
        return
    gain = _gain(kernel, series.launches, again)
    if gain < MEDIUM_GAIN:
        return
    loaded, stored = pairs[0]
    name, moved = name_of(stored.value, kernel), ", ".join(sorted(series.moved))
    yield kernel.finding(
        RULE.id,
        loaded.operation,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"{series.launches} launches, one after another, load {name} and store it again: they differ in {moved} alone",
        f"if nothing reads {name} between the launches, launch once, let a loop in the kernel take the place of the "
        f"launches, and store {name} after the loop",
        {"launches": series.launches, "bytes": loaded.tile_bytes + stored.tile_bytes},
        confidence="medium",
        estimate=(gain, 1.0, _MOST_OVER * gain),
    )


def _of_iterations(kernel: Kernel, chain: Chain) -> Iterator[Finding]:
    """Launches that are given as one argument what the last one was given as another: x to y, then y to x.

    Launches of one tensor in place with equal arguments may as well be a benchmark's: nothing is reported of these.
    """
    accesses = [(one, _tensor(kernel, one)) for one in kernel.accesses]
    pairs = [
        (loaded, stored)
        for loaded, source in accesses
        for stored, target in accesses
        if (source, target) in chain.links and _hands_on(kernel, loaded, stored, chain)
    ]
    again = {one.operation.line: one.operation for pair in pairs for one in pair}
    states = {frozenset(_tensor(kernel, one) for one in pair) for pair in pairs}
    changed = [loaded for loaded, _ in pairs if _tensor(kernel, loaded) in chain.changed]
    if not changed or not _else_kept(kernel, chain, again.keys(), states):
        return
    gain = _gain(kernel, chain.launches, list(again.values()))
    if gain < MEDIUM_GAIN:
        return
    loaded, name = changed[0], name_of(changed[0].value, kernel)
    yield kernel.finding(
        RULE.id,
        loaded.operation,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"{chain.launches} launches, one after another, iterate: each loads as {name} what the last launch stored, "
        "and a CTA loads only elements that the same CTA stored",
        "if nothing else reads what is stored between the launches (a test of convergence, a copy of each step), "
        "launch once: load before a loop in the kernel that takes the place of the launches, and store after the loop",
        {"launches": chain.launches, "bytes": moved_bytes(kernel, again.values())},
        confidence="medium",
        estimate=(min(gain, _MOST_OF_ITERATIONS), 1.0, min(_MOST_OVER * gain, chain.launches)),
    )


def _tensor(kernel: Kernel, access: Access) -> str:
    """The only tensor in which an access lies; empty where there are several, or none is known."""
    names = kernel.tensors_of(access.operation)
    return next(iter(names)) if len(names) == 1 else ""


def _hands_on(kernel: Kernel, loaded: Access, stored: Access, chain: Chain) -> bool:
    """Whether a CTA loads only elements that the same CTA, and no other one, stored in the last launch."""
    if loaded.operation.name not in LOADS or stored.operation.name not in STORES or loaded.value.loaded:
        return False
    masks = [_mask(kernel, one) for one in (loaded, stored)]
    known = [mask for mask in masks if mask is not None and not mask.loaded]
    tensors = {_tensor(kernel, one) for one in (loaded, stored)}
    asked = frozenset().union(*(one.arguments for one in (loaded.value, stored.value, *known)))
    return (
        len(known) == len(masks)
        and not (asked - tensors) & chain.changed
        and np.array_equal(_offsets(kernel, loaded), _offsets(kernel, stored))
        and bool(np.all((known[0].numbers == 0) | (known[1].numbers != 0)))
        and _is_of_one_cta(kernel, stored)
    )


def _offsets(kernel: Kernel, access: Access) -> NDArray[np.int64]:
    """Bytes from the beginning of the tensor to each element."""
    base = kernel.values.of(None, f"%{_tensor(kernel, access)}")
    return access.value.numbers - base.numbers if base is not None else access.value.numbers


def _mask(kernel: Kernel, access: Access) -> Value | None:
    """Of a load or store; true where it has none, None where it is not known."""
    place = mask_place(access.operation)
    has_one = len(access.operation.operands) > place
    return kernel.values.operand(access.operation, place) if has_one else Value(np.array(1, dtype=np.int64))


def _is_of_one_cta(kernel: Kernel, stored: Access) -> bool:
    """Whether the next CTA along each axis of the grid stores other elements."""
    place = [one.operation for one in kernel.accesses].index(stored.operation)
    own = _unmasked(kernel, stored)
    axes = [axis for axis, count in zip("xyz", kernel.grid or (), strict=False) if count > 1]
    following = (replace(kernel, next_along=axis) for axis in axes)
    return not any(np.isin(_unmasked(one, one.accesses[place]), own).any() for one in following)


def _unmasked(kernel: Kernel, access: Access) -> NDArray[np.int64]:
    """Addresses that the mask lets through."""
    mask, numbers = _mask(kernel, access), access.value.numbers
    return numbers if mask is None else numbers[np.broadcast_to(mask.numbers != 0, numbers.shape)]


def _else_kept(kernel: Kernel, chain: Chain, again: Container[int], states: Container[frozenset[str]]) -> bool:
    """Whether all other loads are of tensors that stay the same, in memory that no launch stores to.

    again: lines of the loads and stores of what is handed on. states: the pairs of its tensors.
    """
    loads = [kernel.tensors_of(op) for op in kernel.named(*LOADS) if op.line not in again]
    stores = [kernel.tensors_of(op) for op in kernel.named(*STORES)]
    written = frozenset().union(*stores)
    return (
        all(loads)
        and all(stores)
        and all(names <= chain.kept and not names & written for names in loads)
        and all(pair in states for pair in chain.near if pair & written)
    )


def _pairs(kernel: Kernel) -> Iterator[tuple[Access, Access]]:
    """Loads and stores of the same addresses."""
    for loaded in kernel.accesses:
        for stored in kernel.accesses:
            if (
                loaded.operation.name in LOADS
                and stored.operation.name in STORES
                and not loaded.value.loaded
                and np.array_equal(loaded.value.numbers, stored.value.numbers)
            ):
                yield loaded, stored


def _is_one_loop(kernel: Kernel, series: Series, again: list[Operation]) -> bool:
    """Whether all other loads are of what no launch stores, and some of what differs between the launches."""
    loads = [op for op in kernel.named(*LOADS) if op not in again]
    stores = list(kernel.named(*STORES))
    read = [_names(kernel.values.operand(op, 0)) for op in loads]
    written = [_names(kernel.values.operand(op, 0)) for op in stores]
    tensors = frozenset().union(*written) & kernel.lengths.keys()
    return (
        all(read)
        and all(written)
        and any(names & series.moved for names in read)
        and not any(names & tensors for names in read)
    )


def _names(value: Value | None) -> frozenset[str]:
    """The arguments that an address depends on; none where it is not known."""
    return value.arguments if value is not None else frozenset()


def _gain(kernel: Kernel, launches: int, again: list[Operation]) -> float:
    """Cycles of an SM for all launches over those of one launch, which loads and stores what is `again` once.

    It computes as much as all of them.
    """
    moved = moved_bytes(kernel, kernel.operations) / kernel.arch.memory_bytes_per_cycle
    once = moved_bytes(kernel, again) / kernel.arch.memory_bytes_per_cycle
    computed = arithmetic_cycles(kernel, kernel.operations)
    return launches * max(moved, computed) / max(launches * (moved - once) + once, launches * computed)


RULE = Rule("repeated-launch", "Launches that load what the last one stored", check, needs="history", moves_less=True)
