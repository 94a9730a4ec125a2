"""What bounds a kernel, as its types say: the tensor cores, memory, or arithmetic."""

from collections.abc import Sequence
from pathlib import Path

from kperf.diagnose.analyses.loops import intensity
from kperf.diagnose.analyses.measured import by_instructions, share_of_copy
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, arithmetic_of_cta, bytes_of_cta, moved_bytes
from kperf.diagnose.finding import Bound
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import MMAS, TMA_LOADS, own
from kperf.diagnose.thresholds import NEAR_ROOF, SECTOR_BYTES, SMALL_TILE_SHARE
from kperf.trace.analyze.models import Timeline
from kperf.trace.analyze.stalls import LEAST_SAMPLES, STALLS

_SURE = 2.0
"""How much longer arithmetic has to take by what its TTGIR shows, of which the machine code is some other number."""


def bound_of(kernel: Kernel) -> Bound:
    """By the operations per byte of its main loop, or by what it does at all."""
    found = _bound(kernel)
    return found.model_copy(update={"message": kernel.arch.in_its_words(found.message)})


def as_measured(bound: Bound, timelines: Sequence[Timeline]) -> Bound:
    """With how far the launches stay from memory's rate, if memory bounds them, and where most of the samples are."""
    measured = [one for one in timelines if one.memory is not None and one.bandwidth is not None]
    if bound.unit != "memory" or not measured:
        return bound
    timeline = min(measured, key=share_of_copy)
    share = share_of_copy(timeline)
    if share >= NEAR_ROOF:
        return bound
    words, _ = by_instructions(timeline)
    if words:
        return Bound(
            unit="arithmetic", message=f"arithmetic bounds it: {words}, and it reaches {share:.0%} of a copy's rate"
        )
    message = f"{bound.message}; but it reaches {share:.0%} of a copy's rate"
    if timeline.samples is not None and timeline.samples.total >= LEAST_SAMPLES:
        line = max(timeline.samples.lines, key=lambda one: one.samples)
        reason, count = max(line.stalls.items(), key=lambda one: one[1], default=("misc", line.samples))
        where = f"{Path(line.file).name}:{line.line}" if line.file else "no line of source"
        here, waiting = line.samples / timeline.samples.total, count / line.samples
        message += f": {here:.0%} of the samples are at {where}, and {waiting:.0%} of these"
        message += f" {STALLS.get(reason, reason)} ({reason})"
    return bound.model_copy(update={"message": message})


def _bound(kernel: Kernel) -> Bound:
    for loop in kernel.main_loops:
        if (known := intensity(kernel, own(loop))) is not None:
            return _by_intensity(*known, "its main loop does")
        if any(op.name in MMAS for op in own(loop)):
            return Bound(unit="tensor core", message="the tensor cores bound it: its main loop loads nothing by tiles")
    if (known := intensity(kernel, kernel.operations)) is not None:  # its MMAs stand in no loop
        return _by_intensity(*known, "it does")
    if kernel.accesses or any(True for _ in kernel.named(*TMA_LOADS)):
        return _arithmetic(kernel) or _memory(kernel)
    return Bound(unit="unknown", message="nothing in its TTGIR says what bounds it: trace it on a GPU")


def _by_intensity(done: float, wanted: float, what: str) -> Bound:
    """By the operations of MMAs for each byte, and how many of them keep the tensor cores busy."""
    many = done / wanted >= SMALL_TILE_SHARE
    return Bound(
        unit="tensor core" if many else "memory",
        message=f"{'the tensor cores bound it' if many else 'what it loads bounds it'}: {what} {done:.0f} operations "
        "for each byte that it loads",
    )


def _arithmetic(kernel: Kernel) -> Bound | None:
    """Where a CTA computes for longer than memory takes for its bytes: in its main loop, or in all that it does."""
    in_loops = [
        (arithmetic_cycles(kernel, own(loop)), moved_bytes(kernel, own(loop)), "an iteration")
        for loop in kernel.main_loops
    ]
    whole = (arithmetic_of_cta(kernel, kernel.operations), bytes_of_cta(kernel), "a CTA")
    for cycles, moved, what in (*in_loops, whole):
        moving = moved / kernel.arch.memory_bytes_per_cycle
        if 0 < moving * _SURE < cycles:
            return Bound(
                unit="arithmetic",
                message=f"arithmetic bounds it: {what} computes for some {cycles:.0f} cycles of an SM, and memory "
                f"takes {moving:.0f} for its bytes",
            )
    return None


def _memory(kernel: Kernel) -> Bound:
    accesses = [access for access in kernel.accesses if not access.value.scattered]
    moved = sum(access.tile_sectors * SECTOR_BYTES for access in accesses)
    use = sum(access.tile_bytes for access in accesses) / moved if moved else 1.0
    return Bound(
        unit="memory",
        message=f"memory bounds it: it multiplies no matrices, and its accesses use {use:.0%} of the bytes that move",
    )
