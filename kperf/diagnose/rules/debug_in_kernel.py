"""Prints and barriers that were left in a loop."""

from collections.abc import Iterator

from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import ATOMICS, MMAS, STORES, inside, loops_around, own
from kperf.diagnose.rule import Rule
from kperf.trace.analyze.finding import Finding

_LEFT = {"tt.print": "tl.device_print", "gpu.barrier": "tl.debug_barrier", "ttg.barrier": "tl.debug_barrier"}

_COST = {
    "tl.device_print": "each thread call a function that writes to memory",
    "tl.debug_barrier": "the warps wait for each other",
}
_WITHOUT = {"tl.device_print": "", "tl.debug_barrier": ": the compiler inserts the barriers that the kernel needs"}


def check(kernel: Kernel) -> Iterator[Finding]:
    """Of `tt.print` anywhere and barriers in a loop, outside of warp-specialised kernels.

    A loop that stores to memory may have its threads read there what others wrote: its barriers are left alone.
    """
    specialised = len(kernel.module.warp_groups()) > 1
    for op in kernel.named(*_LEFT):
        loops = loops_around(op)
        exchanging = any(one.name in (*STORES, *ATOMICS) for one in (inside(loops[-1]) if loops else ()))
        if op.name != "tt.print" and (specialised or exchanging or not loops):
            continue
        yield kernel.finding(
            RULE.id,
            op,
            "high" if any(one.name in MMAS for loop in loops[:1] for one in own(loop)) else "medium",
            f"{_LEFT[op.name]} makes {_COST[_LEFT[op.name]]}{' in each iteration' if loops else ''}",
            f"remove it{_WITHOUT[_LEFT[op.name]]}",
            {"operation": op.name},
            estimate=(2.0, 1.0, 3.0),
        )


RULE = Rule("debug-in-kernel", "Prints and barriers left in a kernel", check)
