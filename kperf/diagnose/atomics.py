"""What atomics of a kernel may be for, beside the numbers that they update."""

import re

from kperf.diagnose.kernel import ATOMICS, LOADS, STORES, TMA_LOADS, TMA_STORES, Kernel

_SWAP = re.compile(r"\s*exch\b")
_OF_FLOATS = re.compile(r"\s*f")


def hands_over(kernel: Kernel) -> bool:
    """Whether CTAs may tell each other, or a kernel that runs beside, that data is there: then atomics have to stay.

    They do so by an atomic that swaps, or whose old value is used, or that counts integers beside other atomics or
    stores; by a volatile load; and by a tensor that is updated and is also read or stored. What a call or an assembly
    text with side effects does is not known.
    """
    calls = (op for op in kernel.named("tt.call", "tt.elementwise_inline_asm") if "pure = true" not in op.rest)
    atomics = list(kernel.named(*ATOMICS))
    updated = [kernel.tensors_of(op) for op in atomics]
    stores = list(kernel.named(*STORES, *TMA_STORES))
    if any(True for _ in calls) or not all(updated):
        return True
    if any(op.name == "tt.atomic_cas" or _SWAP.match(op.rest) or kernel.is_used(op) for op in atomics):
        return True
    if any(
        "isVolatile = true" in op.rest or kernel.memory_of(op) & frozenset().union(*updated)
        for op in (*kernel.named(*LOADS, *TMA_LOADS), *stores)
    ):
        return True
    counts = any(not _OF_FLOATS.match(op.rest) for op in atomics)
    return counts and (bool(stores) or len(set(updated)) > 1)
