"""Wide rows on few warps."""

from collections.abc import Iterator
from dataclasses import dataclass

from kperf.diagnose.analyses.ends_of_spills import TO_END_SPILLS, options, shorter_tile
from kperf.diagnose.analyses.largest import largest_value
from kperf.diagnose.analyses.occupancy import bytes_at_once, ctas
from kperf.diagnose.analyses.spills import spills
from kperf.diagnose.analyses.warps import warps_of_row
from kperf.diagnose.reading.accesses import Access
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import LOADS, MMAS
from kperf.diagnose.reading.options import MOST_WARPS, with_option
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import ELEMENTS_OF_THREAD, LEAST_WARPS_OF_ROW, REGISTER_BYTES, SM_BYTES_IN_FLIGHT
from kperf.trace.analyze.finding import Finding, Level

_WIDE = 32
"""Elements of a thread that one warp, which has its SM's attention a quarter of the time, needs not be given."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of kernels without products, by the elements that a thread has of what it loads."""
    wide = wide_row(kernel)
    if wide is None:
        return
    elements, wanted = wide.access.tensor.size, wide.wanted
    severity: Level = "high" if wide.much else "medium"
    spilled = kernel.resources.spilled_bytes if kernel.resources is not None else 0
    filled = f"{spilled} bytes of registers are spilled to memory" if spilled else "the registers fill up"
    found = spills(kernel) if wide.much else None
    severe = found if found is not None and found.severe else None
    after = options(kernel, registers=None, warps=wanted) if severe is not None and wanted > kernel.num_warps else []
    some = [one for one in after if one.left is not None and not one.ends_spills]
    value = largest_value(kernel) if some else None
    yield kernel.finding(
        RULE.id,
        wide.access.operation,
        severity,
        f"{kernel.num_warps} {'warps hold' if kernel.num_warps > 1 else 'warp holds'} {elements} elements, "
        f"{elements // kernel.threads} a thread: too few loads are in flight, and {filled}"
        + "".join(f"; {one.leaves}" for one in some),
        with_option(kernel, f"num_warps={wanted}")
        + (f"; {TO_END_SPILLS}{shorter_tile(kernel, value, after)}" if some else ""),
        {
            "elements": elements,
            "elements_of_a_thread": elements // kernel.threads,
            "num_warps": kernel.num_warps,
            "spilled_bytes": spilled,
        },
        estimate=severe.estimate_with(after[0].left if after else None, spilled)
        if severe is not None
        else (2.0, 1.2, 6.0)  # 1.4 of softmax_one_warp by its spills, whose 16 warps give 1.45 x (H200)
        if wide.much
        else (1.3, 1.0, 2.0),
        candidates=[{"num_warps": warps} for warps in (wanted, wanted // 2, wanted * 2) if 1 <= warps <= MOST_WARPS],
    )


@dataclass(frozen=True)
class WideRow:
    """A load with too many elements for its warps. wanted: warps. much: whether registers hold no such tile."""

    access: Access
    wanted: int
    much: bool


def wide_row(kernel: Kernel) -> WideRow | None:
    """The widest load of a kernel without products, if its warps are too few for it."""
    loads = [access for access in kernel.accesses if access.operation.name in LOADS]
    widest = max(loads, key=lambda access: access.tensor.size, default=None)
    if widest is None or any(True for _ in kernel.named(*MMAS)):
        return None
    each = widest.tensor.size // kernel.threads
    if each < ELEMENTS_OF_THREAD and not (kernel.num_warps < LEAST_WARPS_OF_ROW and each >= _WIDE):
        return None
    spilled = kernel.resources.spilled_bytes if kernel.resources is not None else 0
    # with as many bytes spilled as its elements take, a thread has the row in memory and not in registers
    much = each >= ELEMENTS_OF_THREAD and (kernel.num_warps < LEAST_WARPS_OF_ROW or spilled >= REGISTER_BYTES * each)
    at_once = max(bytes_at_once(kernel), widest.tile_bytes)  # it may stand before the loop that asks for most
    asked = at_once * ctas(kernel) if kernel.resources is not None else 0
    if not much and asked >= SM_BYTES_IN_FLIGHT:
        return None  # measured on an H200: 128 and 256 elements a thread, 0.89 x and 1.00 x with 32 warps
    return WideRow(widest, warps_of_row(kernel, widest.tensor.size), much)


RULE = Rule("too-few-warps", "Few warps on wide rows", check, only_options=True)
