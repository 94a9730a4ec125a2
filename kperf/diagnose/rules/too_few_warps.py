"""Wide rows on few warps."""

from collections.abc import Iterator

from kperf.diagnose.kernel import LOADS, MMAS, MOST_WARPS, Kernel
from kperf.diagnose.occupancy import bytes_at_once, ctas
from kperf.diagnose.rule import Rule
from kperf.diagnose.spills import spills
from kperf.diagnose.thresholds import ELEMENTS_OF_THREAD, LEAST_WARPS_OF_ROW, SM_BYTES_IN_FLIGHT
from kperf.diagnose.warps import warps_of_row
from kperf.trace.analyze.finding import Finding, Level

_WIDE = 32
"""Elements of a thread that one warp, which has its SM's attention a quarter of the time, needs not be given."""
_REGISTER_BYTES = 4
"""With as many bytes spilled as its elements take, a thread has the row in memory and not in registers."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products, by the elements that a thread has of what it loads."""
    if any(True for _ in kernel.named(*MMAS)):
        return
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    widest = max(loads, key=lambda access: access.tensor.size, default=None)
    if widest is None:
        return
    each = widest.tensor.size // (kernel.threads)
    if each < ELEMENTS_OF_THREAD and not (kernel.num_warps < LEAST_WARPS_OF_ROW and each >= _WIDE):
        return
    wanted = warps_of_row(kernel, widest.tensor.size)
    spilled = kernel.resources.spilled_bytes if kernel.resources is not None else 0
    much = each >= ELEMENTS_OF_THREAD and (kernel.num_warps < LEAST_WARPS_OF_ROW or spilled >= _REGISTER_BYTES * each)
    asked = bytes_at_once(kernel) * ctas(kernel) if kernel.resources is not None else 0
    if not much and asked >= SM_BYTES_IN_FLIGHT:
        return  # measured on an H200: 128 and 256 elements a thread, 0.89 x and 1.00 x with 32 warps
    severity: Level = "high" if much else "medium"
    filled = f"{spilled} bytes of registers are spilled to memory" if spilled else "the registers fill up"
    yield kernel.finding(
        RULE.id,
        widest.operation,
        severity,
        f"{kernel.num_warps} {'warps hold' if kernel.num_warps > 1 else 'warp holds'} {widest.tensor.size} elements, "
        f"{each} a thread: too few loads are in flight, and {filled}",
        kernel.with_option(f"num_warps={wanted}"),
        {
            "elements": widest.tensor.size,
            "elements_of_a_thread": each,
            "num_warps": kernel.num_warps,
            "spilled_bytes": spilled,
        },
        estimate=_estimate(kernel, much=much),
        candidates=[{"num_warps": warps} for warps in (wanted, wanted // 2, wanted * 2) if 1 <= warps <= MOST_WARPS],
    )


def _estimate(kernel: Kernel, *, much: bool) -> tuple[float, float, float]:
    """As of the spills, where they are severe: 1.4 of softmax_one_warp, whose 16 warps give 1.45 x (H200)."""
    found = spills(kernel) if much else None
    if found is not None and found.severe:
        return found.estimate
    return (2.0, 1.2, 6.0) if much else (1.3, 1.0, 2.0)


RULE = Rule("too-few-warps", "Few warps on wide rows", check, only_options=True)
