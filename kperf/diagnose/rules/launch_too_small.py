"""A grid of fewer CTAs than the GPU has SMs."""

import math
from collections.abc import Iterator

from kperf.arch import H200, H200_FIRST_L2_LATENCY, H200_L2_KEPT_BYTES, SM_90A
from kperf.console import agreeing
from kperf.diagnose.analyses.chains import chained_loads, is_chase
from kperf.diagnose.analyses.loops import accesses_of
from kperf.diagnose.analyses.occupancy import (
    arithmetic_cycles,
    arithmetic_of_cta,
    bytes_of_cta,
    ctas,
    mma_cycles,
    moved_bytes,
)
from kperf.diagnose.analyses.splits import can_be_split, combines, further, has_parts_apart
from kperf.diagnose.analyses.traffic import tensor_bytes
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, LOOPS, MMAS, loops_around, own
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import LAUNCH_MS, LEAST_SM_BYTES, MEDIUM_GAIN, SECTOR_BYTES, SEVERE_GAIN
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding, Level

_LIKELY = 0.65
"""The power of the share of idle SMs that more CTAs gave: 2.9 x of 8.3, and 2.5 x of 4.1 (H100)."""
_LIKELY_APART = 0.9
"""The same where CTAs take iterations that leave nothing to combine: 3.4 x of 4.1, and 2.5 x of 2.1, as a second CTA on
an SM works while the first waits (H200)."""
_MOSTLY = 2
"""Times as long as it works for which a CTA waits, so that others beside it on its SM take nothing away from it."""

_SHARED_MS = 0.006
"""That a CTA moves bytes for, so that it is worth a second launch of 4 us to share them."""
_LONG = 16
"""Iterations: with fewer a CTA of several waits for its first tile as long as it multiplies. Not measured."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """By the grid of the launch, and by loads whose latency more CTAs would hide."""
    assert kernel.grid is not None
    sms = H200.sms
    count = kernel.grid[0] * kernel.grid[1] * kernel.grid[2]
    if count < 1 or (count < 2 and not (_sums_long(kernel) or _sweeps_long(kernel))):
        return
    loads, of_chains = max((_gain_of_chains(kernel, loop, count) for loop in kernel.main_loops), default=(0, 0.0))
    has_idle = sms / count >= MEDIUM_GAIN
    if not has_idle and of_chains < SEVERE_GAIN:
        return  # to split the work costs more than a few SMs give
    most = min(sms / count, _gain_of_one_pass(kernel, count))
    apart = has_parts_apart(kernel, math.ceil(sms / count))
    likely = min((sms / count) ** (_LIKELY_APART if apart else _LIKELY), most)
    severity = _severity(kernel, max(likely, of_chains), apart=apart)
    if count == 1:
        likely, most = (_beside_launch(kernel, gain) for gain in (likely, most))
    is_hidden = of_chains > likely
    yield kernel.finding(
        RULE.id,
        None,
        severity,
        (
            f"{count} {agreeing(count, 'CTA leaves', 'CTAs leave')} {sms - count} of {sms} SMs without work"
            if has_idle
            else f"the launch has {count / sms:.2g} CTAs for each SM, which has room for {ctas(kernel)}"
        )
        + (f", and each iteration of a CTA waits for {_one_after_another(loads)}" if is_hidden else ""),
        further(kernel, math.ceil((ctas(kernel) if is_hidden else 1) * sms / count))
        + (f"; {ctas(kernel)} CTAs fit on an SM, and some work while the others wait" if is_hidden else ""),
        {"ctas": count, "sms": sms},
        confidence="low",
        estimate=(of_chains, 1.0, 2 * of_chains) if is_hidden else (likely, 1.0, most),
    )


def _severity(kernel: Kernel, gain: float, *, apart: bool) -> Level:
    """Severe where the split is worth it however it is done: the sums of several CTAs may take another launch.

    apart: whether nothing is left to sum, so that the launch's own time is all that stays.
    """
    if gain < MEDIUM_GAIN:
        return "low"
    if apart:
        return "high" if _beside_launch(kernel, gain) >= SEVERE_GAIN else "medium"
    lasting = _lasting_ms(kernel)
    return "high" if lasting >= SEVERE_GAIN * (lasting / gain + LAUNCH_MS) else "medium"


def _beside_launch(kernel: Kernel, gain: float) -> float:
    """What is left of a gain for a launch, whose own time stays however many CTAs take their parts."""
    lasting = _lasting_ms(kernel)
    return (lasting + LAUNCH_MS) / (lasting / gain + LAUNCH_MS)


def _lasting_ms(kernel: Kernel) -> float:
    """A CTA takes at least as long as its SM for its bytes, arithmetic or MMAs."""
    multiplying = sum(kernel.times(op) * mma_cycles(kernel, [op]) for op in kernel.named(*MMAS))
    cycles = max(_moving(kernel), arithmetic_of_cta(kernel, kernel.operations), multiplying)
    return cycles / (H200.max_mhz * 1e3)


def _moving(kernel: Kernel) -> float:
    """Cycles that an SM takes for the bytes of a CTA."""
    return max(bytes_of_cta(kernel), _share_of_swept(kernel)) / kernel.arch.memory_bytes_per_cycle


def _share_of_swept(kernel: Kernel) -> float:
    """Bytes of a CTA's share of the tensors that loops of unknown length load: as of a cache, of all its rows."""
    assert kernel.grid is not None
    swept = {
        name: kernel.lengths.get(name, 0) * access.tensor.bytes
        for access in kernel.accesses
        if access.operation.name in LOADS
        and any(kernel.iterations(loop) is None for loop in loops_around(access.operation))
        for name in kernel.tensors_of(access.operation)
    }
    return sum(swept.values()) / math.prod(kernel.grid)


def _gain_of_chains(kernel: Kernel, loop: Operation, count: int) -> tuple[int, float]:
    """Loads of an iteration that wait one after another, and what CTAs give that wait for theirs meanwhile.

    More CTAs help until L2 is busy, device memory, or arithmetic, or the SMs are full. (0, 0.0) of a loop without such
    loads, of one that neither it nor a loop around it can share among CTAs, and where a CTA is busy for as long as it
    waits.
    """
    loads = 0 if any(op.name in MMAS for op in own(loop)) else chained_loads(loop)
    if not loads or kernel.resources is None or all(map(is_chase, (loop, *loops_around(loop)))):
        return 0, 0.0
    waiting = loads * H200_FIRST_L2_LATENCY
    here = accesses_of(kernel, loop)
    asked = SECTOR_BYTES * sum(_sectors(access) for access in here)
    moved = sum(access.asked_bytes for access in here if _is_large(kernel, access))
    busy = max(
        asked / H200.l2_bytes_per_cycle,
        moved / kernel.arch.memory_bytes_per_cycle,
        arithmetic_cycles(kernel, own(loop)),
    )
    if waiting < _MOSTLY * busy:
        return 0, 0.0
    full = ctas(kernel) * H200.sms / count
    return loads, min(waiting / max(busy * count / H200.sms, 1), full)


def _sectors(access: Access) -> int:
    """Of a CTA's request: of scattered elements one each."""
    return access.tensor.size if access.value.scattered else access.sectors


def _is_large(kernel: Kernel, access: Access) -> bool:
    """Whether L2 does not keep its tensor, as far as the launch says how long that is."""
    return sum(tensor_bytes(kernel, name) for name in kernel.tensors_of(access.operation)) > H200_L2_KEPT_BYTES


def _one_after_another(loads: int) -> str:
    return f"{loads} loads one after another" if loads > 1 else "a load whose address the last one gave"


def _sums_long(kernel: Kernel) -> bool:
    """Whether a loop multiplies in many iterations, which CTAs can share. One CTA is enough for a last small sum."""
    loops = [loop for loop in kernel.main_loops if any(op.name in MMAS for op in own(loop))]
    return any((kernel.iterations(loop) or 0) >= _LONG for loop in loops)


def _sweeps_long(kernel: Kernel) -> bool:
    """Whether a loop that several CTAs could share is most of a CTA's work, and its bytes take long enough for that."""
    multiplies = any(True for _ in kernel.named(*MMAS))
    loops = (one for one in kernel.named(*LOOPS) if can_be_split(kernel, one, _LONG) and combines(kernel, one))
    return any(loops) and not multiplies and _moving(kernel) >= _SHARED_MS * H200.max_mhz * 1e3


def _gain_of_one_pass(kernel: Kernel, count: int) -> float:
    """Of CTAs without loops: each waits for memory once, however little it has; infinity with loops."""
    work = max(
        moved_bytes(kernel, kernel.operations) / kernel.arch.memory_bytes_per_cycle,
        arithmetic_cycles(kernel, kernel.operations),
    )
    if any(True for _ in kernel.named(*LOOPS, *MMAS)) or not work:
        return math.inf
    latency = LEAST_SM_BYTES / kernel.arch.memory_bytes_per_cycle
    return (latency + work) / (latency + work * count / H200.sms)


RULE = Rule(
    "launch-too-small",
    "A launch too small for the GPU",
    check,
    needs="launch",
    targets=(SM_90A.name,),
    explained_by=("launch-per-slice", "persistent-grid"),
)
