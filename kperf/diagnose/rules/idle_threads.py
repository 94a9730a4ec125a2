"""More threads than elements: several do the same work, or none."""

import math
from collections.abc import Iterator

from kperf.arch import H200
from kperf.diagnose.kernel import LOADS, LOOPS, MMAS, Access, Kernel, loops_around
from kperf.diagnose.occupancy import gain_of_more_bytes, warps_of_vectors
from kperf.diagnose.rule import Rule
from kperf.diagnose.starts import larger, starts_of
from kperf.diagnose.thresholds import MEDIUM_GAIN
from kperf.ir.layouts import tensor_types
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products whose largest access has fewer elements than the CTA has threads.

    Elements that a mask leaves out do not count, where it leaves half of the threads and more without one.
    """
    widest = max(kernel.accesses, key=_weight, default=None)
    threads = kernel.threads
    if widest is None or any(True for _ in kernel.named(*MMAS)):
        return
    elements = widest.asked_bytes // widest.tensor.bytes
    masked = elements < min(widest.tensor.size, threads)
    if (elements > threads // 2 if masked else elements >= threads) or _is_computed_wider(kernel, widest):
        return
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    warps = warps_of_vectors(kernel, widest.asked_bytes)
    others = f"{'a mask leaves the other threads without' if masked else 'the other threads repeat the same'} work"
    starts = starts_of(kernel)
    fewer = [kernel.with_option(f"num_warps={warps}")] if warps < kernel.num_warps else []
    if starts is not None:
        gain, others = starts.gain, f"{others}; {starts.words}"
        more = larger(kernel, widest, starts.times)[0]
    else:
        gain = gain_of_more_bytes(kernel, sum(access.asked_bytes for access in loads)) if loads else (2.0, 1.0, 4.0)
        more = "let a CTA work on several rows, or on a larger BLOCK"
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium" if gain[0] >= MEDIUM_GAIN else "low",
        f"the CTA has {threads} threads for {elements} elements: {others}",
        "; or ".join(fewer if fewer and _has_idle_sms(kernel) else [more, *fewer]),
        {"threads": threads, "elements": elements},
        estimate=gain,
        candidates=[{"num_warps": warps}] if fewer else [],
    )


def _has_idle_sms(kernel: Kernel) -> bool:
    """Whether more work for each of a launch's few CTAs, which wait once, would leave more SMs without any."""
    loops = kernel.named(*LOOPS)
    return all(map(kernel.runs_once, loops)) and kernel.grid is not None and math.prod(kernel.grid) < H200.sms


def _weight(access: Access) -> tuple[int, int]:
    """What a loop asks for in each iteration counts more than what is asked for once."""
    return access.asked_bytes // access.tensor.bytes, len(loops_around(access.operation))


def _is_computed_wider(kernel: Kernel, widest: Access) -> bool:
    """Whether a tensor has more elements than what is loaded and stored, as of all pairs of a row."""
    return any(tensor.size > widest.tensor.size for op in kernel.operations for tensor in tensor_types(op.rest))


RULE = Rule("idle-threads", "More threads than elements", check)
