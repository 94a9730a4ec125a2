"""Sums, maxima and other reductions of sliding windows, each computed anew of all its elements."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kperf.arch import H200, H200_L1_BYTES_PER_CYCLE
from kperf.diagnose.analyses.occupancy import arithmetic_cycles, arithmetic_of_cta
from kperf.diagnose.analyses.sweeps import fits_l1
from kperf.diagnose.analyses.windows import Level, Window, windows
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of
from kperf.diagnose.reading.pointers import name_of
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LAUNCH_CYCLES, MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_BANK_BYTES = 4
"""A lane gets from L1 in a cycle at most; of shorter elements one."""
_SCANNED = 16
"""Instructions for an element of two scans, and to join them. An order of magnitude: beside the bytes of `rolling_mean`
they do not show (H200)."""
_TWICE = 2
"""An element is read by the two chunks of a window, or when it enters a running sum and when it leaves it."""


@dataclass(frozen=True)
class _Costs:
    """Cycles of an SM for a CTA: its loads of the windows from L1 and from L2, its arithmetic, its bytes of memory."""

    l1: float
    l2: float
    arithmetic: float
    memory: float

    @property
    def most(self) -> float:
        """They overlap."""
        return max(self.l1, self.l2, self.arithmetic, self.memory)


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of windows in the TTIR: a scan of chunks, or a running sum, reads each element twice.

    `rolling_mean`, whose windows have 256 elements, gains 18.6 x by these cycles, and 20.26 x were measured (H200).
    """
    written = kernel.as_written
    together: dict[tuple[int, ...], list[Window]] = {}
    for window in windows(written) if written is not None else ():
        together.setdefault(tuple(load.line for load in window.loads), []).append(window)
    for alike in together.values():
        assert written is not None
        now, then = _now(kernel, written, alike), _then(kernel, written, alike)
        launch = _launch_cycles(kernel)
        gain = (now.most + launch) / (then.most + launch)
        if gain >= MEDIUM_GAIN:
            yield _finding(kernel, written, alike, now, gain)


def _finding(kernel: Kernel, written: Kernel, alike: Sequence[Window], now: _Costs, gain: float) -> Finding:
    window = alike[0]
    address = written.values.operand(window.loads[0], 0)
    assert address is not None
    kinds = dict.fromkeys(one.kind for one in alike)
    lengths = " x ".join(str(level.count) for level in reversed(window.sliding))
    loads = max(now.l1, now.l2)
    return kernel.finding(
        RULE.id,
        window.loads[0],
        "high" if gain >= SEVERE_GAIN else "medium",
        f"each output loads its window of {lengths} elements of {name_of(address, written)} anew, for their "
        f"{' and '.join(kinds)}, though neighbouring windows have most elements in common: the loads take some "
        f"{loads:.0f} cycles of an SM, and memory takes {now.memory:.0f} cycles to move each byte once",
        _advice(window, list(kinds)),
        {
            "window": window.length,
            "hop": math.prod(level.hop for level in window.sliding),
            "load_cycles": loads,
            "arithmetic_cycles": now.arithmetic,
            "memory_cycles": now.memory,
        },
        confidence="medium",
        estimate=(gain, 1.0, 1.5 * gain),
    )


def _advice(window: Window, kinds: Sequence[str]) -> str:
    """Two scans of chunks as long as the window, whatever is reduced."""
    level = max(window.sliding, key=lambda one: one.count)
    length = math.ceil(level.count / level.hop)
    grouped = f"reduce each {level.hop} elements to one first; " if level.hop > 1 else ""
    turns = "reduce along one direction, and then the results along the other one; " if len(window.sliding) > 1 else ""
    scans = (
        "b is the chunk behind it, and the sums are tl.cumsum(a, axis, reverse=True) + tl.cumsum(b, axis) - b"
        if kinds[0] == "sum"
        else f"b begins at its last element, and the {kinds[0]} of a window is that of tl.associative_scan(a, axis, "
        "combine, reverse=True) and tl.associative_scan(b, axis, combine)"
    )
    return (
        f"{grouped}{turns}let a CTA compute {length} neighbouring windows from two chunks of {length} elements, each "
        f"loaded once: a is the chunk at which the first window begins, {scans}"
    )


def _launch_cycles(kernel: Kernel) -> float:
    """Of a launch, for each CTA of an SM; 0 where no launch is known."""
    if kernel.grid is None:
        return 0.0
    return LAUNCH_CYCLES / max(math.prod(kernel.grid) / H200.sms, 1)


def _now(kernel: Kernel, written: Kernel, alike: Sequence[Window]) -> _Costs:
    """As the kernel is."""
    window = alike[0]
    begun = window.outputs * window.times
    terms = begun * math.prod(level.count for level in window.levels)
    from_l2 = begun * math.prod(_from_l2(kernel, window, level) for level in window.levels)
    return _Costs(
        terms * _bytes(window) / _l1_rate(kernel, window),
        from_l2 * _bytes(window) / H200.l2_bytes_per_cycle,
        _others(written, alike) + _of_terms(written, alike) + terms * len(alike) / kernel.arch.fp32_per_cycle,
        _memory(kernel, window),
    )


def _then(kernel: Kernel, written: Kernel, alike: Sequence[Window]) -> _Costs:
    """With scans or running sums."""
    window = alike[0]
    once = window.outputs * window.times * math.prod(level.hop or level.count for level in window.levels)
    less = math.prod(min(_TWICE * level.hop / level.count, 1) for level in window.sliding)
    return _Costs(
        _TWICE * once * _bytes(window) / _l1_rate(kernel, window),
        _TWICE * once * _bytes(window) / H200.l2_bytes_per_cycle,
        _others(written, alike)
        + _of_terms(written, alike) * less
        + _SCANNED * once * len(alike) / kernel.arch.fp32_per_cycle,
        _memory(kernel, window),
    )


def _from_l2(kernel: Kernel, window: Window, level: Level) -> float:
    """Elements that an output loads of L2 along a level: L1 keeps what others of its tile, or iteration, loaded."""
    if not level.hop:
        return level.count
    is_kept = isinstance(level.mover, int) and fits_l1(kernel, window.outputs * level.count * _bytes(window))
    return level.hop + (level.count - level.hop) * (0.0 if is_kept else 1 - level.shared)


def _memory(kernel: Kernel, window: Window) -> float:
    """Cycles for each element once, and for all else that a CTA loads and stores."""
    once = window.outputs * window.times * math.prod(level.hop or level.count for level in window.levels)
    frames = [frame_of(load) for load in window.loads]
    others = (access for access in kernel.accesses if frame_of(access.operation) not in frames)
    moved = sum(access.asked_bytes * kernel.times(access.operation) for access in others)
    return (once * _bytes(window) + moved) / kernel.arch.memory_bytes_per_cycle


def _others(written: Kernel, alike: Sequence[Window]) -> float:
    """Cycles for what a CTA computes beside the windows."""
    lines = {op.line for window in alike for op in (*window.computing, *window.joining)}
    return arithmetic_of_cta(written, [op for op in written.operations if op.line not in lines])


def _of_terms(written: Kernel, alike: Sequence[Window]) -> float:
    """Cycles for what is computed of an element before it is joined."""
    computing = {op.line: op for window in alike for op in window.computing}.values()
    return arithmetic_cycles(written, computing) * alike[0].iterations * alike[0].times


def _bytes(window: Window) -> int:
    """That are loaded for an element."""
    return sum(map(_element_bytes, window.loads))


def _element_bytes(load: Operation) -> int:
    return next((tensor.bytes for tensor in tensor_types(load.rest)), _BANK_BYTES)


def _l1_rate(kernel: Kernel, window: Window) -> float:
    """Bytes a cycle: a request of a warp takes one at least, and neighbouring windows begin at any element."""
    load = window.loads[0]
    at_once = kernel.machine_bytes(load) or _element_bytes(load)
    return H200_L1_BYTES_PER_CYCLE * min(at_once, _BANK_BYTES) / _BANK_BYTES


RULE = Rule("window-summed-anew", "Sliding windows that are reduced anew for each output", check)
"""The rule: neighbouring windows have most elements in common."""
