"""Launches one after another that each add their part to what the last one stored."""

from collections.abc import Iterator

import numpy as np

from kperf.diagnose.history import Series
from kperf.diagnose.kernel import ATOMICS, LOADS, LOOPS, MMAS, STORES, TMA_LOADS, Access, Kernel, name_of
from kperf.diagnose.occupancy import arithmetic_cycles, moved_bytes
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.ir.values import Value
from kperf.trace.analyze.finding import Finding

_MOST_OVER = 1.5
"""By which factor the gain may be above its estimate: what is added up needs no load where it begins at 0."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without loops and MMAs whose CTAs load, of what they all store, only the elements that they store.

    Then a loop in the kernel over what differs between the launches computes the same numbers.
    """
    series = kernel.history.series if kernel.history is not None else None
    if series is None or any(kernel.named(*LOOPS, *MMAS, *ATOMICS, *TMA_LOADS)):
        return
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


RULE = Rule("repeated-launch", "Launches that add to the same tensor", check, needs="history", moves_less=True)
