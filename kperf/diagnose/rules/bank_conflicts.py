"""Lanes of a warp that meet in one bank of shared memory."""

from collections.abc import Iterator

from kperf.diagnose.analyses.given_layouts import giver_of
from kperf.diagnose.analyses.loops import largest_bytes
from kperf.diagnose.analyses.turns import gain_without_conflicts, turns_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BANK_WAYS
from kperf.trace.analyze.finding import Finding

_REORDER = (
    "load the tile in the order in which the kernel uses it: swap the strides in its pointers, or transpose it once "
    "before the loop"
)
_SWIZZLE = (
    "swizzle the buffer (gl.SwizzledSharedLayout with a larger max_phase, or gl.NVMMASharedLayout), pad its rows, or "
    "read it along the dimension along which the kernel writes it"
)
_ADVICE = {False: _REORDER, True: _SWIZZLE, None: f"{_REORDER}; in Gluon, {_SWIZZLE}"}
"""By `is_gluon`: Gluon's buffers have the layouts that its source gives them, others those that the compiler chose."""


def check(kernel: Kernel) -> Iterator[Finding]:
    """From the layouts of shared memory and of the registers that are read or written."""
    for op in kernel.named("ttg.local_load", "ttg.local_store"):
        turns = turns_of(kernel, op)
        if turns is None or (ways := max(turns)) < BANK_WAYS or giver_of(kernel, op) is not None:
            continue  # redundant-load says so of the load that gives this tile its layout
        looping = bool(loops_around(op))
        yield kernel.finding(
            RULE.id,
            op,
            "high" if looping and ways >= 2 * BANK_WAYS and kernel.is_gluon else "medium",
            f"{ways} lanes of a warp use the same bank of shared memory, so each access takes {ways} turns instead of "
            "one",
            _ADVICE[kernel.is_gluon],
            {"ways": ways, "bytes": largest_bytes(op)},
            confidence="medium",
            estimate=gain_without_conflicts(ways),
        )


RULE = Rule("bank-conflicts", "Bank conflicts in shared memory", check, by_options=True)
