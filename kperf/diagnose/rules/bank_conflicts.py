"""Lanes of a warp that meet in one bank of shared memory."""

from collections.abc import Iterator

import numpy as np

from kperf.arch import Arch
from kperf.diagnose.reading.accesses import run_of
from kperf.diagnose.reading.kernel import Kernel
from kperf.diagnose.reading.operations import loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BANK_WAYS
from kperf.ir.layouts import Coordinates, tensor_types
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
        types = tensor_types(op.rest)
        shared = next((tensor for tensor in types if "shared" in kernel.layouts.kind(tensor.layout)), None)
        tensor = next((tensor for tensor in types if tensor is not shared), None)
        places = kernel.layouts.elements(tensor) if shared is not None and tensor is not None else None
        offsets = kernel.layouts.offsets(shared, places) if shared is not None and places is not None else None
        if tensor is None or offsets is None or (ways := _ways(offsets, tensor.bytes, kernel.arch)) < BANK_WAYS:
            continue
        looping = bool(loops_around(op))
        yield kernel.finding(
            RULE.id,
            op,
            "high" if looping and ways >= 2 * BANK_WAYS and kernel.is_gluon else "medium",
            f"{ways} lanes of a warp use the same bank of shared memory, so each access takes {ways} turns instead of "
            "one",
            _ADVICE[kernel.is_gluon],
            {"ways": ways, "bytes": tensor.size * tensor.bytes},
            confidence="medium",
            estimate=(min(ways, 8) ** 0.4, 1.0, float(ways)),
        )


def _ways(offsets: Coordinates, size: int, arch: Arch) -> int:
    """Turns that a warp's access takes, at the worst register; `offsets` in bytes of elements of `size` bytes."""
    run = run_of(offsets, size, aligned=False)
    first = offsets[:, ::run, :]
    lanes = max(arch.shared_bytes_per_cycle // max(run * size, arch.shared_bank_bytes), 1)  # that one turn can serve
    worst = 1
    for warp in first:
        for register in warp:
            for start in range(0, len(register), lanes):
                words = np.unique(register[start : start + lanes] // arch.shared_bank_bytes)
                worst = max(worst, int(np.bincount(words % arch.shared_banks).max()))
    return worst


RULE = Rule("bank-conflicts", "Bank conflicts in shared memory", check)
