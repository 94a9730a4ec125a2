"""More threads than elements: several do the same work."""

from collections.abc import Iterator

from kperf.diagnose.kernel import LOADS, MMAS, Kernel
from kperf.diagnose.occupancy import gain_of_more_bytes
from kperf.diagnose.rule import Rule
from kperf.trace.analyze.finding import Finding


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products whose largest tensor has fewer elements than the CTA has threads."""
    widest = max(kernel.accesses, key=lambda access: access.tensor.size, default=None)
    threads = kernel.threads
    if widest is None or any(True for _ in kernel.named(*MMAS)) or widest.tensor.size >= threads:
        return
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    wanted = max(1, widest.tensor.size // 32)
    yield kernel.finding(
        RULE.id,
        widest.operation,
        "medium",
        f"the CTA has {threads} threads for {widest.tensor.size} elements: the others repeat the same work",
        f"let a CTA work on several rows or a larger BLOCK; or launch with num_warps={min(wanted, kernel.num_warps)}",
        {"threads": threads, "elements": widest.tensor.size},
        estimate=gain_of_more_bytes(kernel, sum(access.tile_bytes for access in loads)) if loads else (2.0, 1.0, 4.0),
    )


RULE = Rule("idle-threads", "More threads than elements", check)
