"""A loop on the host that launches a kernel for each slice of a tensor, where one launch could do all of them."""

import math
from collections.abc import Iterator

from kperf.arch import H200, SM_90A
from kperf.diagnose.analyses.loops import largest_bytes
from kperf.diagnose.analyses.occupancy import arithmetic_of_cta, mma_cycles
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, LOADS, LOOPS, STORES, TMA_LOADS, TMA_STORES
from kperf.diagnose.rule import Rule
from kperf.diagnose.script.sequences import Slices
from kperf.diagnose.thresholds import LAUNCH_MS, MEDIUM_GAIN, MMA_SHARE, SECTOR_BYTES, SEVERE_GAIN
from kperf.ir.layouts import element_bytes
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_LEAST_LAUNCHES = 4
"""Two or three may be the query, the key and the value of one tensor, each with a use of its own."""
_MOST_OVER = 2.0
"""By which factor the gain may be above its estimate: Python, which makes a view for each launch, may take longer than
the launch. pre_emphasis is 10.8 times as fast with one launch, 9.6 by the estimate (H200)."""
_AXES = ("a second", "a third")
_LARGEST_INT32 = 2**31 - 1


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the launches of a function that differ in the slice alone, and that do not depend on each other."""
    slices = kernel.history.slices if kernel.history is not None else None
    if slices is None or slices.launches < _LEAST_LAUNCHES or slices.grid != kernel.grid:
        return
    if any(kernel.iterations(loop) is None for loop in kernel.named(*LOOPS)) or not _is_independent(kernel, slices):
        return
    count = math.prod(slices.grid)
    work = _sm_ms(kernel)
    busy = work / min(count, H200.sms)
    together = LAUNCH_MS + slices.launches * work / min(slices.launches * count, H200.sms)
    gain = slices.launches * max(busy, LAUNCH_MS) / together
    if gain < MEDIUM_GAIN:
        return
    names = ", ".join(sorted(name for name, step in slices.steps.items() if step))
    short = (
        f"a launch has work for {busy * 1e3:.1f} us, and the CPU takes {LAUNCH_MS * 1e3:.0f} us to launch a kernel"
        if busy < LAUNCH_MS
        else f"a launch has {count} CTAs for {H200.sms} SMs"
    )
    yield kernel.finding(
        RULE.id,
        None,
        "high" if gain >= SEVERE_GAIN else "medium",
        f"{slices.launches} launches, one after another, do the same for other slices (they differ in {names} alone): "
        + short,
        _advice(kernel, slices),
        {"launches": slices.launches, "ctas": count, "busy_us": busy * 1e3},
        confidence="medium",
        estimate=(gain, 1.0, _MOST_OVER * gain),
    )


def _is_independent(kernel: Kernel, slices: Slices) -> bool:
    """Whether no launch loads what another one stores, and no two of them store the same elements.

    A tensor that is stored to is another slice in each launch, or its addresses depend on a number that moves on; then
    no launch loads of it.
    """
    if any(kernel.named(*ATOMICS, *TMA_STORES)):
        return False
    loads, stores = ([kernel.tensors_of(op) for op in kernel.named(*names)] for names in ((*LOADS, *TMA_LOADS), STORES))
    loaded, written = (frozenset().union(*names) for names in (loads, stores))
    if not stores or not all(loads) or not all(stores) or any(pair & written for pair in slices.near):
        return False
    sliced = slices.apart & {name for name, step in slices.steps.items() if step}
    return (
        all(
            names <= sliced or (not names & loaded and _moves_on(kernel, op, slices))
            for op, names in zip(kernel.named(*STORES), stores, strict=True)
        )
        and loaded & written <= sliced
    )


def _moves_on(kernel: Kernel, store: Operation, slices: Slices) -> bool:
    """Whether the addresses of a store depend on a whole number that differs between the launches."""
    address = kernel.values.operand(store, 0)
    numbers = {name for name, step in slices.steps.items() if step and name in kernel.numbers}
    return address is not None and not address.loaded and bool(address.arguments & numbers)


def _sm_ms(kernel: Kernel) -> float:
    """Time of one SM for all CTAs of a launch: the longest of their bytes, their MMAs and their arithmetic."""
    count = math.prod(kernel.grid or ())
    cycles = max(
        _bytes(kernel, count) / kernel.arch.memory_bytes_per_cycle,
        count * sum(kernel.times(op) * mma_cycles(kernel, [op]) for op in kernel.operations) / MMA_SHARE,
        count * arithmetic_of_cta(kernel, kernel.operations),
    )
    return cycles / (H200.max_mhz * 1e3)


def _bytes(kernel: Kernel, count: int) -> float:
    """What the loads and the stores of a launch move: of each tensor no more than it has, because L2 keeps a slice."""
    moved: dict[tuple[frozenset[str], bool], float] = {}
    most: dict[frozenset[str], float] = {}
    for op in kernel.named(*LOADS, *STORES, *TMA_LOADS):
        names, access = kernel.tensors_of(op), kernel.access(op)
        key = names, op.name in STORES
        size = largest_bytes(op) if access is None else access.asked_bytes
        if access is not None and access.value.scattered:
            size = access.tensor.size * SECTOR_BYTES
        elif access is not None and len(names) == 1:
            most[names] = kernel.lengths.get(next(iter(names)), math.inf) * access.tensor.bytes
        moved[key] = moved.get(key, 0) + count * kernel.times(op) * size
    return sum(min(size, most.get(names, math.inf)) for (names, _), size in moved.items())


def _advice(kernel: Kernel, slices: Slices) -> str:
    """One launch with one more axis of the grid, and how the kernel moves on along it."""
    used = [op.rest.split()[0] for op in kernel.named("tt.get_program_id", "tt.get_num_programs")]
    grid = kernel.grid or ()
    dimensions = max((place for place, axis in enumerate("xyz", 1) if axis in used or grid[place - 1] > 1), default=1)
    program, launch = f"tl.program_id({dimensions})", ""
    if dimensions <= len(_AXES):
        launch = f"launch once, with {_AXES[dimensions - 1]} axis of the grid that is {slices.launches} long"
    else:
        launch = f"launch once, with {slices.launches} times as many programs along one axis of the grid"
        program = "slice"
    moves = [_move(kernel, name, step, program, slices.launches) for name, step in slices.steps.items() if step]
    stored = ", ".join(sorted(frozenset().union(*(kernel.tensors_of(op) for op in kernel.named(*STORES)))))
    return f"if nothing else reads {stored} between the launches, {launch}, and write in the kernel: {'; '.join(moves)}"


def _move(kernel: Kernel, name: str, step: int, program: str, launches: int) -> str:
    """How the kernel moves an argument on by the axis of the grid."""
    parameter = kernel.parameters.get(name)
    if parameter is not None and parameter.is_pointer:
        step //= element_bytes(parameter.type)
        if abs(step) * launches > _LARGEST_INT32:
            program += ".to(tl.int64)"
    return f"{name} += {program}" + (f" * {step}" if step != 1 else "")


RULE = Rule("launch-per-slice", "A launch for each slice of a tensor", check, needs="history", targets=(SM_90A.name,))
