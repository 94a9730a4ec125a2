"""Atomics that wait for each other, though nothing asks for their order."""

import math
import re
from collections.abc import Iterator

import numpy as np

from kperf.arch import (
    H100_FENCE_NS,
    H100_HIDDEN_FENCES,
    H100_UPDATE_NS,
    H200,
    H200_ATOMIC_BYTES_PER_CYCLE,
    H200_ATOMIC_NS,
    H200_COPY_GB_PER_S,
)
from kperf.diagnose.analyses.atomics import hands_over
from kperf.diagnose.analyses.occupancy import bytes_of_cta, ctas
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.lines import frame_of, lines_of
from kperf.diagnose.reading.operations import LOADS
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import MEDIUM_GAIN, SEVERE_GAIN
from kperf.ir.layouts import tensor_types
from kperf.ir.ttgir import Operation
from kperf.trace.analyze.finding import Finding

_BY_DEFAULT = re.compile(r"\s*\w+, acq_rel, gpu\b")
"""Order and scope that `tl.atomic_add` and the like have where the source gives none."""
_FENCE = "MEMBAR"
_MOST = 4.0
"""3.6 x was the most that was measured (many_splits with ordered atomics)."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of all such atomics of a kernel together, at those whose fences a CTA passes most often.

    Measured on an H100, of 18 kernels of the proof set in both orders: with up to 8 fences a CTA 10 of 12 became up to
    7 % slower, and with 16 or more the kernels became 1.25 to 3.6 times as slow, except one whose updates meet at few
    addresses.
    """
    ordered = [op for op in kernel.named("tt.atomic_rmw") if _BY_DEFAULT.match(op.rest)]
    if not ordered or hands_over(kernel):
        return
    passed = {op.line: fences for op in ordered if (fences := _fences(kernel, op))}
    fences = sum(passed.values())
    waits = (fences - H100_HIDDEN_FENCES) * H100_FENCE_NS
    if waits <= 0:
        return
    rest = _rest_ns(kernel)
    gain = (rest + waits) / rest
    if gain < MEDIUM_GAIN:
        return
    costly = max((op for op in ordered if op.line in passed), key=lambda op: passed[op.line])
    others = lines_of((op for op in ordered if op.line in passed), costly)
    yield kernel.finding(
        RULE.id,
        costly,
        "high" if gain >= SEVERE_GAIN and kernel.lengths else "medium",
        f"the atomics on {', '.join(sorted(kernel.tensors_of(costly)))}"
        f"{f' (likewise on {others})' if others else ''} have the default order, acquire and release: a CTA passes "
        f"{fences:.0f} fences (MEMBAR) one after another, each waits for all of a thread's earlier writes and atomics, "
        "and then empties the L1 cache",
        'write sem="relaxed" in the atomic, if no kernel that runs at the same time waits for what it updates: this '
        "kernel uses neither its old value nor what other CTAs wrote before theirs, so the sums are the same",
        {"fences": round(fences), "waits_us": waits / 1e3},
        confidence="medium",
        estimate=(min(gain, _MOST), 1.0, min(2 * gain, _MOST)),
    )


def _fences(kernel: Kernel, op: Operation) -> float:
    """How many a CTA passes for an atomic: a thread passes one for each of its instructions."""
    fences = sum(one.opcode.startswith(_FENCE) for one in kernel.instructions_of(op))
    of_line = [one for one in kernel.named("tt.atomic_rmw") if frame_of(one) == frame_of(op)]
    return fences / len(of_line) * kernel.times(op)


def _rest_ns(kernel: Kernel) -> float:
    """Time without the fences of as many CTAs as run at once: their bytes, their updates, and the waits for loads."""
    at_once = H200.sms * max(ctas(kernel), 1)
    if kernel.grid is not None:
        at_once = min(at_once, math.prod(kernel.grid))
    turns = max((kernel.times(op) for op in kernel.named(*LOADS)), default=1)
    waits = turns * H200.l2_latency / H200.max_mhz * 1e3
    updates = sum(_updates_ns(kernel, op, at_once) for op in kernel.named("tt.atomic_rmw"))
    return at_once * bytes_of_cta(kernel) / H200_COPY_GB_PER_S + updates + waits


def _updates_ns(kernel: Kernel, op: Operation, at_once: int) -> float:
    """Of an atomic in so many CTAs, in L2: all its elements, or those of one address one after another."""
    address, types = kernel.values.operand(op, 0), tensor_types(op.rest)
    elements = (types[0].size if types else 1) * kernel.times(op) * at_once
    if address is None or address.loaded:
        return elements * H100_UPDATE_NS
    rate = H200.sms * H200_ATOMIC_BYTES_PER_CYCLE * H200.max_mhz / 1e3
    of_address = 0.0 if address.program else elements / len(np.unique(address.numbers))
    return max(elements * (types[-1].bytes if types else 4) / rate, of_address * H200_ATOMIC_NS)


RULE = Rule(
    "ordered-atomics",
    "Atomics in an order that nothing needs",
    check,
    needs="machine code",
    targets=("sm_",),
    explained_by=("atomic-contention", "emulated-atomics", "needless-atomics"),
)
