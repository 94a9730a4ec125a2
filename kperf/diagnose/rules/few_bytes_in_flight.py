"""A kernel of which each thread asks for a few bytes and waits."""

import math
from collections.abc import Iterator

from kperf.arch import H200
from kperf.diagnose.kernel import LOADS, LOOPS, MMAS, STORES, Kernel
from kperf.diagnose.occupancy import gain_of_more_bytes
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BYTES_IN_FLIGHT
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without loops and products, by the bytes that a thread loads."""
    if any(True for _ in kernel.named(*LOOPS, *MMAS)):
        return
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    threads = kernel.threads
    each = sum(access.tile_bytes for access in loads) / threads
    widest = max(loads, key=lambda access: access.tile_bytes, default=None)
    stored = [access for access in kernel.accesses if access.operation.name in STORES]
    too_small = kernel.grid is not None and math.prod(kernel.grid) < H200.sms
    if widest is None or not stored or each >= BYTES_IN_FLIGHT or too_small:
        return
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"a thread loads {each:.2g} bytes and ends: too little is in flight to fill the memory's pipe",
        f"let a CTA work on {max(2, round(2 * BYTES_IN_FLIGHT / each))} times as many elements (BLOCK), so that a "
        "thread has 16 bytes and more",
        {"bytes_of_a_thread": each, "elements": widest.tensor.size, "threads": threads},
        confidence="medium",
        estimate=gain_of_more_bytes(kernel, each * threads),
        candidates=[tile for factor in (2, 4, 8) for tile in kernel.scaled(widest.tensor.shape, factor)[-1:]],
    )


RULE = Rule("few-bytes-in-flight", "Too few bytes in flight", check)
