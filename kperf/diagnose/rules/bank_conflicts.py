"""Lanes of a warp that meet in one bank of shared memory."""

import math
from collections.abc import Iterator

import numpy as np

from kperf.diagnose.kernel import Kernel, loops_around
from kperf.diagnose.rule import Rule
from kperf.diagnose.thresholds import BANK_WAYS
from kperf.ir.layouts import Coordinates, TensorType, tensor_types
from kperf.trace.analyze.finding import Finding

_BANKS = 32
_BANK_BYTES = 4


def check(kernel: Kernel) -> Iterator[Finding]:
    """From the layouts of shared memory and of the registers that are read or written."""
    for op in kernel.named("ttg.local_load", "ttg.local_store"):
        types = tensor_types(op.rest)
        shared = next((tensor for tensor in types if "shared" in kernel.layouts.kind(tensor.layout)), None)
        tensor = next((tensor for tensor in types if tensor is not shared), None)
        if shared is None or tensor is None or kernel.layouts.kind(shared.layout) != "swizzled_shared":
            continue
        places = kernel.layouts.elements(tensor)
        ways = _ways(kernel, shared, places) if places is not None and len(shared.shape) <= 2 else 1
        if ways < BANK_WAYS:
            continue
        looping = bool(loops_around(op))
        yield kernel.finding(
            RULE.id,
            op,
            "high" if looping and ways >= 2 * BANK_WAYS else "medium",
            f"{ways} lanes of a warp meet in one bank of shared memory, so each access takes {ways} turns",
            "swizzle the buffer (a larger maxPhase, NVMMASharedLayout) or pad its rows; read along the dimension in "
            "which it was written",
            {"ways": ways, "bytes": tensor.size * tensor.bytes},
            confidence="medium",
            estimate=(min(ways, 8) ** 0.4, 1.0, float(ways)),
        )


def _ways(kernel: Kernel, shared: TensorType, places: Coordinates) -> int:
    """Turns that a warp's access takes, at the worst register."""
    found = kernel.layouts.parameters(shared.layout)
    vec, per, phases = (found.get(name, [1])[0] for name in ("vec", "perPhase", "maxPhase"))
    order = found.get("order", list(reversed(range(len(shared.shape)))))
    column = places[..., order[0]]
    row = places[..., order[1]] if len(order) > 1 else np.zeros_like(column)
    swizzled = ((column // vec) ^ ((row // per) % phases)) * vec + column % vec
    offsets = (row * shared.shape[order[0]] + swizzled) * shared.bytes
    run = _run(offsets, shared.bytes)
    first = offsets[:, ::run, :]
    lanes = max(_BANKS * _BANK_BYTES // max(run * shared.bytes, _BANK_BYTES), 1)  # that one turn can serve
    worst = 1
    for warp in first:
        for register in warp:
            for start in range(0, len(register), lanes):
                words = np.unique(register[start : start + lanes] // _BANK_BYTES)
                worst = max(worst, int(np.bincount(words % _BANKS).max()))
    return worst


def _run(offsets: Coordinates, size: int) -> int:
    """Registers of a thread that lie side by side: a power of two, at most 16 bytes."""
    run = 1
    while run * 2 * size <= 16 and offsets.shape[1] % (run * 2) == 0:
        groups = offsets.reshape(offsets.shape[0], -1, run * 2, offsets.shape[2])
        if not np.all(np.diff(groups, axis=2) == size):
            break
        run *= 2
    return math.gcd(run, offsets.shape[1])


RULE = Rule("bank-conflicts", "Bank conflicts in shared memory", check)
